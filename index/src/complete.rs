//! Interface to a chat model, which callers supply.

use std::fmt;
use std::time::Duration;

/// Author of a chat message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelRole {
    /// Instructions to the model.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

impl fmt::Display for ModelRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelRole::System => "system",
            ModelRole::User => "user",
            ModelRole::Assistant => "assistant",
        })
    }
}

/// Message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelMessage {
    /// Author of the message.
    pub role: ModelRole,
    /// Text of the message.
    pub content: String,
}

impl ModelMessage {
    pub(crate) fn new(role: ModelRole, content: impl Into<String>) -> ModelMessage {
        ModelMessage { role, content: content.into() }
    }
}

/// Reply of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReply {
    /// Text of the reply.
    pub text: String,
    /// If `true`, the reply was cut off at the token limit.
    pub cut: bool,
}

/// Error of a chat completion.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompleteError {
    /// Every request will fail: for example, the key is wrong or the model does not exist.
    #[error("{0}")]
    Refused(String),
    /// This request will always fail, for example because it is too long. Others may succeed.
    #[error("{0}")]
    Rejected(String),
    /// The same request may succeed later: too many requests, a timeout, or a server error.
    #[error("{message}")]
    Transient {
        /// Description of the failure.
        message: String,
        /// Minimum wait before the next attempt, if the server asked for one.
        after: Option<Duration>,
    },
}

/// Completes chats. Called from many threads at once; each call blocks until the reply is complete.
pub trait Complete: fmt::Debug + Send + Sync {
    /// Name of the model, for example `gpt-4o-mini`.
    fn model(&self) -> &str;

    /// Returns the likeliest reply to `messages` (temperature 0), of at most `max_tokens` tokens.
    ///
    /// # Errors
    /// If no reply arrives. The kind of the error decides whether the request is retried.
    fn complete(&self, messages: &[ModelMessage], max_tokens: u32) -> Result<ModelReply, CompleteError>;
}
