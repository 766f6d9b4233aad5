//! What can go wrong on a card.

use super::kernel::KernelError;
use super::learner;
use super::plan::Shortage;
use crate::ModelError;

/// Why something on a card could not be done.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no card to compute on: no driver, no device of that number, or a library is missing. Nothing was changed.
    #[error("no CUDA device can be used: {0}")]
    Unavailable(String),
    /// Weights, workspace and cache do not fit together.
    #[error(transparent)]
    Memory(#[from] Box<Shortage>),
    /// Nor does what learning takes.
    #[error(transparent)]
    Learning(#[from] Box<learner::Shortage>),
    /// The driver or a library refused.
    #[error("{action}: {reason}")]
    Call {
        /// What was tried.
        action: &'static str,
        /// What it said.
        reason: String,
    },
    /// The card does not answer any more; nothing is asked of it.
    #[error("{0}")]
    Lost(String),
    /// The kernels could not be compiled for this card.
    #[error("the kernels do not compile for {card}: {log}")]
    Compile {
        /// The card's architecture, such as `sm_90`.
        card: String,
        /// What the compiler said.
        log: String,
    },
    /// A kernel was not launched.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The checkpoint or the batch is not in order.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<CudaError> for ModelError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Model(error) => error,
            other => Self::Card(other.to_string()),
        }
    }
}

#[cfg(feature = "cuda")]
impl CudaError {
    pub(super) fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable(reason.into())
    }
}
