//! The user's input: a question and the chat before it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waymark_models::chat::{Tool, ToolCall};

use super::AgentError;

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions that precede the chat.
    System,
    /// The user.
    User,
    /// An earlier answer.
    Assistant,
    /// The result of a call that an earlier answer made.
    Tool,
}

impl Role {
    /// Returns the name of the role in chat templates.
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
pub struct ConversationMessage {
    /// Author of the message.
    pub role: Role,
    /// Plain text, in which no character sequence has a special meaning.
    pub content: String,
    /// Tool calls of an earlier answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
}

impl ConversationMessage {
    /// Creates a message without calls.
    pub fn new(role: Role, content: impl Into<String>) -> ConversationMessage {
        ConversationMessage { role, content: content.into(), calls: Vec::new() }
    }

    /// Returns the size of all texts, in bytes: the content, and the calls.
    pub fn bytes(&self) -> usize {
        self.content.len() + self.calls.iter().map(ToolCall::bytes).sum::<usize>()
    }
}

/// A chat and the question in it that is to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    messages: Vec<ConversationMessage>,
    /// Index of the question in `messages`.
    asked: usize,
    /// Shared, since several answers may be generated for one conversation.
    tools: Arc<[Tool]>,
    /// Value of the chat template's switch for thinking. `None` keeps the template's default.
    thinking: Option<bool>,
}

impl Conversation {
    /// Creates a conversation from a question without a history.
    pub fn new(question: impl Into<String>) -> Conversation {
        let messages = vec![ConversationMessage::new(Role::User, question)];
        Conversation { messages, asked: 0, tools: Arc::default(), thinking: None }
    }

    /// Creates a conversation from a chat. The question is the last message of the user; calls and their results may
    /// follow. In a chat without a message of the user, the result at its end takes the place of the question. Messages
    /// are kept as they are.
    ///
    /// # Errors
    /// [`AgentError::Conversation`] when the last message is neither the user's nor a tool's, or is the user's and
    /// blank.
    pub fn from_messages(messages: Vec<ConversationMessage>) -> Result<Conversation, AgentError> {
        let last = messages.last().ok_or(AgentError::Conversation("at least one message is required"))?;
        let by_user = |message: &ConversationMessage| message.role == Role::User;
        match last.role {
            Role::System | Role::Assistant => {
                Err(AgentError::Conversation("the last message must have the role user or tool"))
            }
            Role::User if last.content.trim().is_empty() => Err(AgentError::Conversation("the last message is empty")),
            Role::User | Role::Tool => {
                let asked = messages.iter().rposition(by_user).unwrap_or(messages.len() - 1);
                Ok(Conversation { messages, asked, tools: Arc::default(), thinking: None })
            }
        }
    }

    /// Adds tools that may be called.
    #[must_use]
    pub fn with_tools(self, tools: Vec<Tool>) -> Conversation {
        Conversation { tools: tools.into(), ..self }
    }

    /// Sets the chat template's switch for thinking. `None` keeps the template's default.
    #[must_use]
    pub fn with_thinking(self, thinking: Option<bool>) -> Conversation {
        Conversation { thinking, ..self }
    }

    /// Returns the value of the chat template's switch for thinking.
    pub(super) fn thinking(&self) -> Option<bool> {
        self.thinking
    }

    /// Returns the question.
    pub fn question(&self) -> &str {
        &self.messages[self.asked].content
    }

    /// Returns the question, dropping the rest.
    pub fn into_question(mut self) -> String {
        self.messages.swap_remove(self.asked).content
    }

    /// Returns all messages, oldest first.
    pub fn messages(&self) -> &[ConversationMessage] {
        &self.messages
    }

    /// Returns the calls and results after the question. Empty if the question is the last message.
    pub fn after_question(&self) -> &[ConversationMessage] {
        &self.messages[self.asked + 1..]
    }

    /// Returns the tools that may be called.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Returns `true` if tools may be called, or were called before.
    pub fn has_tools(&self) -> bool {
        let said = |message: &ConversationMessage| message.role == Role::Tool || !message.calls.is_empty();
        !self.tools.is_empty() || self.messages.iter().any(said)
    }

    /// Returns the size of all texts, in bytes: messages, calls, and descriptions of tools.
    pub fn bytes(&self) -> usize {
        let tools = self.tools.iter().map(|tool| serde_json::to_vec(tool).map_or(0, |json| json.len()));
        self.messages.iter().map(ConversationMessage::bytes).sum::<usize>() + tools.sum::<usize>()
    }

    /// Returns the same chat without its messages before `start`, which is at most the index of the question. Keeps
    /// instructions.
    pub(super) fn beginning_at(&self, start: usize) -> Conversation {
        let kept = |at: usize, message: &ConversationMessage| at >= start || message.role == Role::System;
        let messages: Vec<ConversationMessage> = self
            .messages
            .iter()
            .enumerate()
            .filter(|(at, message)| kept(*at, message))
            .map(|(_, message)| message.clone())
            .collect();
        // Everything from the question on is kept, so its distance from the end stays.
        let asked = messages.len() - (self.messages.len() - self.asked);
        Conversation { messages, asked, tools: Arc::clone(&self.tools), thinking: self.thinking }
    }

    /// Returns the whole chat, with `content` in place of the question.
    pub fn with_question(&self, content: String) -> Vec<ConversationMessage> {
        let mut messages = self.messages.clone();
        messages[self.asked].content = content;
        messages
    }

    /// Returns the same chat with its tools written into its texts: `messages` are the rewritten messages of this chat,
    /// in the same order, after at most one new message.
    pub(super) fn reworded(&self, messages: Vec<ConversationMessage>) -> Conversation {
        let asked = self.asked + messages.len().saturating_sub(self.messages.len());
        Conversation { messages, asked, tools: Arc::default(), thinking: self.thinking }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::chat::Arguments;

    use super::*;

    #[test]
    fn the_last_user_message_is_the_question() {
        let chat = vec![
            ConversationMessage::new(Role::System, "Be short."),
            ConversationMessage::new(Role::User, "Who wrote Faust?"),
            ConversationMessage::new(Role::Assistant, "Goethe"),
            ConversationMessage::new(Role::User, "When?"),
        ];
        let conversation = Conversation::from_messages(chat.clone()).unwrap();
        assert_eq!(conversation.question(), "When?");
        assert_eq!((conversation.messages(), conversation.after_question()), (&chat[..], &chat[4..]));
        let prompted = conversation.with_question("Q: When?".into());
        assert_eq!(prompted[..3], chat[..3]);
        assert_eq!(prompted[3].content, "Q: When?");
        assert_eq!(conversation.bytes(), "Be short.Who wrote Faust?GoetheWhen?".len());
    }

    #[test]
    fn a_chat_without_a_question_is_refused() {
        for chat in [
            vec![],
            vec![ConversationMessage::new(Role::User, " \n")],
            vec![ConversationMessage::new(Role::User, "a"), ConversationMessage::new(Role::Assistant, "b")],
        ] {
            assert!(matches!(Conversation::from_messages(chat), Err(AgentError::Conversation(_))));
        }
    }

    #[test]
    fn a_question_stays_one_after_calls_and_their_results() {
        let call = ToolCall { name: "look".to_owned(), arguments: Arguments::default() };
        let called = ConversationMessage { calls: vec![call], ..ConversationMessage::new(Role::Assistant, "") };
        let chat =
            vec![ConversationMessage::new(Role::User, "Look."), called, ConversationMessage::new(Role::Tool, "")];
        let conversation = Conversation::from_messages(chat.clone()).unwrap();
        assert_eq!((conversation.question(), conversation.after_question()), ("Look.", &chat[1..]));
        assert_eq!(conversation.with_question("Look.".into()), chat);
        assert!(conversation.has_tools() && !Conversation::new("Look.").has_tools());
        let bare = Conversation::from_messages(chat[1..].to_vec()).unwrap();
        assert_eq!((bare.question(), bare.after_question().len()), ("", 0), "nobody asked");
    }
}
