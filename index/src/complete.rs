//! The seam to a language model that completes chats: the index does not know where it runs.

use std::fmt;
use std::time::Duration;

/// Who says a message of a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelRole {
    /// Whoever set the chat up.
    System,
    /// Whoever asks.
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

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelMessage {
    /// Who says it.
    pub role: ModelRole,
    /// What is said.
    pub content: String,
}

impl ModelMessage {
    pub(crate) fn new(role: ModelRole, content: impl Into<String>) -> ModelMessage {
        ModelMessage { role, content: content.into() }
    }
}

/// What a model replied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReply {
    /// The reply.
    pub text: String,
    /// Whether it was cut off at the most tokens that it might have.
    pub cut: bool,
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompleteError {
    /// No request of ours will be answered: the key is wrong, the model does not exist.
    #[error("{0}")]
    Refused(String),
    /// This request will not be answered, others may be: it is too long.
    #[error("{0}")]
    Rejected(String),
    /// The same request may be answered later: too many requests, a time limit, a server in trouble.
    #[error("{message}")]
    Transient {
        /// What happened.
        message: String,
        /// How long to wait at least, where the other side says so.
        after: Option<Duration>,
    },
}

/// Completes chats. Called from many threads at once; each call blocks until the reply is there.
pub trait Complete: fmt::Debug + Send + Sync {
    /// Names the model, as in `gpt-4o-mini`.
    fn model(&self) -> &str;

    /// The reply to `messages`: the likeliest one (temperature 0), of at most `max_tokens` tokens.
    ///
    /// # Errors
    /// Whatever keeps the reply from coming; of what kind that is decides whether it is asked for again.
    fn complete(&self, messages: &[ModelMessage], max_tokens: u32) -> Result<ModelReply, CompleteError>;
}
