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
    /// The engine cannot be used: it serves another model than the one that was checked, refuses the check, does not
    /// accept the API key, or has a certificate that is not trusted.
    Unfit,
    /// The engine does not allow a request of this kind with the server's key.
    Forbidden,
    /// The engine cannot load an adapter, or the weights that it has loaded are not those of the policy. The engine
    /// itself is the one that was checked.
    OtherAdapter,
    /// The engine refuses the request, and any other engine would as well.
    Refused,
}

impl Fault {
    /// Creates the failure of an engine's request.
    pub(super) fn new(url: &str, kind: FaultKind, message: impl Into<String>) -> Self {
        Self { url: url.to_owned(), kind, message: message.into() }
    }

    /// Returns this failure as one of `kind` if the engine refused the request, does not allow it, or does not know its
    /// model. For requests that the server makes for itself, whose refusal is no client's fault.
    pub(super) fn refused_as(self, kind: FaultKind) -> Self {
        match self.kind {
            FaultKind::Refused | FaultKind::Forbidden | FaultKind::MissingModel => Self { kind, ..self },
            _ => self,
        }
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
            | FaultKind::Forbidden
            | FaultKind::OtherAdapter => {
                EngineError::Unavailable(format!("no engine completed the generation: {}", self.message))
            }
        }
    }
}
