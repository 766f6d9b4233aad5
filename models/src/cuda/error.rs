//! Errors of the CUDA backend.

use super::kernel::KernelError;
use super::learner;
use super::plan::MemoryShortage;
use crate::ModelError;

/// Error of the CUDA backend.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No usable GPU: no driver, no device of this ordinal, a missing library, or a driver or device that is too old.
    /// A call that fails with it has no effect.
    #[error("no CUDA device can be used: {0}")]
    Unavailable(String),
    /// Weights, workspace and KV cache do not fit into device memory.
    #[error(transparent)]
    Memory(#[from] Box<MemoryShortage>),
    /// Training does not fit into device memory.
    #[error(transparent)]
    Learning(#[from] Box<learner::LearningShortage>),
    /// The driver or a library returned an error.
    #[error("{action}: {reason}")]
    Call {
        /// The attempted action.
        action: &'static str,
        /// The returned error.
        reason: String,
    },
    /// The GPU stopped responding; no further calls are made to it.
    #[error("{0}")]
    Lost(String),
    /// The kernels do not compile for this GPU.
    #[error("the kernels do not compile for {architecture}: {log}")]
    Compile {
        /// Architecture of the GPU, such as `sm_90`.
        architecture: String,
        /// Compiler log.
        log: String,
    },
    /// A kernel could not be launched.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The checkpoint or the batch is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<CudaError> for ModelError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Model(error) => error,
            other => Self::Gpu(other.to_string()),
        }
    }
}

#[cfg(feature = "cuda")]
impl CudaError {
    pub(super) fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable(reason.into())
    }
}
