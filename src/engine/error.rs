//! The engine's one error type.

/// Why a session could not begin or go on. Cheap to clone: one failure may concern many sessions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// As many requests wait as may wait.
    #[error("{limit} requests are waiting already; try again later")]
    QueueFull {
        /// The limit, [`EngineConfig::max_waiting`](super::EngineConfig::max_waiting).
        limit: usize,
    },
    /// The sequence leaves no room to sample a single token.
    #[error("{tokens} tokens leave no room to generate: a sequence can hold {limit}")]
    TooLong {
        /// Its length.
        tokens: usize,
        /// The shorter of the model's context and the KV pool.
        limit: usize,
    },
    /// The request makes no sense; nothing was changed.
    #[error("{0}")]
    Request(String),
    /// The forward pass failed for this session. Its tokens so far are kept.
    #[error("forward pass failed: {0}")]
    Backend(String),
    /// No token could be chosen for this session. Its tokens so far are kept.
    #[error("sampling failed: {0}")]
    Sample(String),
    /// An adapter could not be loaded, or is not loaded any more.
    #[error("adapter: {0}")]
    Adapter(String),
    /// The weights could not be replaced; those before stand.
    #[error("weights: {0}")]
    Weights(String),
    /// The engine has stopped.
    #[error("the engine has stopped: {0}")]
    Dead(String),
}
