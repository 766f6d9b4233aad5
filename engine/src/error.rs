//! Error type of the engine.

/// Error of a session or of an engine call. Cheap to clone, as one failure may concern many sessions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The waiting queue is full.
    #[error("the queue is full with {limit} waiting requests: try again later")]
    QueueFull {
        /// Maximum number of waiting requests, [`EngineConfig::max_waiting`](super::EngineConfig::max_waiting).
        limit: usize,
    },
    /// The sequence leaves no room to sample a token.
    #[error("a sequence of {tokens} tokens leaves no room to generate: the limit is {limit} tokens")]
    TooLong {
        /// Length of the sequence.
        tokens: usize,
        /// Maximum length of a sequence: the model's context length or the KV pool, whichever is smaller.
        limit: usize,
    },
    /// The request is invalid; no state was changed.
    #[error("{0}")]
    Request(String),
    /// The forward pass failed for this session. Its tokens so far are kept.
    #[error("forward pass failed: {0}")]
    Backend(String),
    /// No token could be chosen for this session. Its tokens so far are kept.
    #[error("sampling failed: {0}")]
    Sample(String),
    /// The turn cannot follow its constraint: no continuation satisfies the constraint, or the constraint takes too
    /// much work to check. The session's tokens so far are kept.
    #[error("the turn cannot follow its constraint: {0}")]
    Constraint(String),
    /// An adapter could not be loaded, or is no longer loaded.
    #[error("adapter: {0}")]
    Adapter(String),
    /// The weights could not be replaced; the previous ones stay in use.
    #[error("weights: {0}")]
    Weights(String),
    /// No remote engine can take the request, or all attempts failed. The session's tokens so far are kept.
    #[error("{0}")]
    Unavailable(String),
    /// The engine has stopped.
    #[error("the engine has stopped: {0}")]
    Dead(String),
}
