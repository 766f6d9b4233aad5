//! What the user said: a question, and the chat before it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waymark_models::chat::{Tool, ToolCall};

use super::AgentError;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions that precede the chat.
    System,
    /// The person.
    User,
    /// An earlier answer.
    Assistant,
    /// What came of a call that an earlier answer made.
    Tool,
}

impl Role {
    /// The name chat templates know it by.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said: plain text, in which nothing has a special meaning.
    pub content: String,
    /// The calls that an earlier answer made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), calls: Vec::new() }
    }
}

/// A question with the chat that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    history: Vec<Message>,
    last: Message,
    /// Shared, for several answers may be given to one conversation.
    tools: Arc<[Tool]>,
}

impl Conversation {
    /// A question out of the blue.
    pub fn new(question: impl Into<String>) -> Conversation {
        let last = Message::new(Role::User, question);
        Conversation { history: Vec::new(), last, tools: Arc::default() }
    }

    /// A chat whose last message, which must be the user's or a tool's, is the question. Earlier messages are kept as they
    /// are.
    ///
    /// # Errors
    /// [`AgentError::Conversation`] when the last message is somebody else's, or the user's and holds nothing but white
    /// space.
    pub fn from_messages(mut messages: Vec<Message>) -> Result<Conversation, AgentError> {
        let last = messages.pop().ok_or(AgentError::Conversation("there is no message"))?;
        match last.role {
            Role::System | Role::Assistant => {
                Err(AgentError::Conversation("the last message must be the user's, or a tool's"))
            }
            Role::User if last.content.trim().is_empty() => Err(AgentError::Conversation("the last message is empty")),
            Role::User | Role::Tool => Ok(Conversation { history: messages, last, tools: Arc::default() }),
        }
    }

    /// The same with tools that may be called.
    #[must_use]
    pub fn with_tools(self, tools: Vec<Tool>) -> Conversation {
        Conversation { tools: tools.into(), ..self }
    }

    /// What is asked; after a call, what came of it.
    pub fn question(&self) -> &str {
        &self.last.content
    }

    /// What is asked, without the rest.
    pub fn into_question(self) -> String {
        self.last.content
    }

    /// What was said before, oldest first.
    pub fn history(&self) -> &[Message] {
        &self.history
    }

    /// The message that is answered.
    pub fn last(&self) -> &Message {
        &self.last
    }

    /// The tools that may be called.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Whether there are tools in it, to be called or called before.
    pub fn has_tools(&self) -> bool {
        let said = |message: &Message| message.role == Role::Tool || !message.calls.is_empty();
        !self.tools.is_empty() || said(&self.last) || self.history.iter().any(said)
    }

    /// The whole chat, with `content` in place of the question.
    pub fn with_last(&self, content: String) -> Vec<Message> {
        let mut messages = self.history.clone();
        messages.push(Message { content, ..self.last.clone() });
        messages
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_last_user_message_is_the_question() {
        let chat = vec![
            Message::new(Role::System, "Be short."),
            Message::new(Role::User, "Who wrote Faust?"),
            Message::new(Role::Assistant, "Goethe"),
            Message::new(Role::User, "When?"),
        ];
        let conversation = Conversation::from_messages(chat.clone()).unwrap();
        assert_eq!(conversation.question(), "When?");
        assert_eq!(conversation.history(), &chat[..3]);
        let prompted = conversation.with_last("Q: When?".into());
        assert_eq!(prompted[..3], chat[..3]);
        assert_eq!(prompted[3].content, "Q: When?");
    }

    #[test]
    fn a_chat_without_a_question_is_refused() {
        for chat in [
            vec![],
            vec![Message::new(Role::User, " \n")],
            vec![Message::new(Role::User, "a"), Message::new(Role::Assistant, "b")],
        ] {
            assert!(matches!(Conversation::from_messages(chat), Err(AgentError::Conversation(_))));
        }
    }

    #[test]
    fn a_tools_result_is_answered_as_a_question_is() {
        let call = ToolCall { name: "look".to_owned(), arguments: serde_json::Map::new() };
        let called = Message { calls: vec![call], ..Message::new(Role::Assistant, "") };
        let chat = vec![Message::new(Role::User, "Look."), called, Message::new(Role::Tool, "")];
        let conversation = Conversation::from_messages(chat.clone()).unwrap();
        assert_eq!(conversation.with_last(String::new()), chat);
        assert!(conversation.has_tools() && !Conversation::new("Look.").has_tools());
    }
}
