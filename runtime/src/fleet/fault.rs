//! Failures of requests to an engine.

use waymark_engine::EngineError;

/// Failure of a request to an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {message}")]
pub(super) struct Fault {
    pub(super) url: String,
    pub(super) kind: FaultKind,
    pub(super) message: String,
}

/// Kind of a failure. It decides what happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// No connection can be made.
    Unreachable,
    /// The engine failed, was silent for too long, or broke off.
    Broken,
    /// The engine takes no more requests for now.
    Busy,
    /// The engine does not know the model or the adapter.
    MissingModel,
    /// The engine is not the one that was checked, or cannot show that it is: another model, or a certificate that is
    /// not trusted.
    Unfit,
    /// The weights that the engine has loaded as an adapter are not those of the policy. The engine itself is the one
    /// that was checked.
    OtherAdapter,
    /// The engine refuses the request, and any other engine would as well.
    Refused,
}

impl Fault {
    /// Creates the failure of an engine's request.
    pub(super) fn new(url: &str, kind: FaultKind, message: impl Into<String>) -> Self {
        Self { url: url.to_owned(), kind, message: message.into() }
    }

    /// Returns the error of a turn that this failure ends, without the engine's address: clients see it. `limit` is the
    /// maximum number of requests.
    pub(super) fn ending(self, limit: usize) -> EngineError {
        match self.kind {
            FaultKind::Busy => EngineError::QueueFull { limit },
            FaultKind::Refused => EngineError::Request(self.message),
            FaultKind::Unreachable
            | FaultKind::Broken
            | FaultKind::MissingModel
            | FaultKind::Unfit
            | FaultKind::OtherAdapter => {
                EngineError::Unavailable(format!("no engine completed the generation: {}", self.message))
            }
        }
    }
}
