//! What the user said: a question, and the chat before it.

use serde::{Deserialize, Serialize};

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
}

impl Role {
    /// The name chat templates know it by.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
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
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into() }
    }
}

/// A question with the chat that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    history: Vec<Message>,
    question: String,
}

impl Conversation {
    /// A question out of the blue.
    pub fn new(question: impl Into<String>) -> Conversation {
        Conversation { history: Vec::new(), question: question.into() }
    }

    /// A chat whose last message, which must be the user's, is the question. Earlier messages are kept as they are.
    ///
    /// # Errors
    /// [`AgentError::Conversation`] when the last message is not the user's or holds nothing but white space.
    pub fn from_messages(mut messages: Vec<Message>) -> Result<Conversation, AgentError> {
        let last = messages.pop().ok_or(AgentError::Conversation("there is no message"))?;
        if last.role != Role::User {
            return Err(AgentError::Conversation("the last message must be the user's"));
        }
        if last.content.trim().is_empty() {
            return Err(AgentError::Conversation("the last message is empty"));
        }
        Ok(Conversation { history: messages, question: last.content })
    }

    /// What is asked.
    pub fn question(&self) -> &str {
        &self.question
    }

    /// What is asked, without the rest.
    pub fn into_question(self) -> String {
        self.question
    }

    /// What was said before, oldest first.
    pub fn history(&self) -> &[Message] {
        &self.history
    }

    /// The whole chat, with `content` in place of the question.
    pub fn with_last(&self, content: String) -> Vec<Message> {
        let mut messages = self.history.clone();
        messages.push(Message { role: Role::User, content });
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
}
