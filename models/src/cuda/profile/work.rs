//! Kinds of work in a step.

use std::fmt;

use crate::cuda::kernel::Kernel;

/// A kind of work in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// DeviceMatrix multiplications with weights of one shape.
    MatMul {
        /// Width of an input row.
        inn: usize,
        /// Width of an output row.
        out: usize,
    },
    /// Embedding lookup.
    Embedding,
    /// RMS norms of the residual stream.
    Norm,
    /// The fused kernel of biases, norms per head, rotation, and KV cache writes.
    Rotary,
    /// Attention, decoding and prefill.
    Attention,
    /// Activation of the feed-forward block.
    Activation,
    /// LoRA kernels, without the matrix multiplications of the base model.
    Adapters,
    /// Sampling of tokens.
    Sampling,
    /// Kernels that only training launches.
    Learning,
}

impl WorkKind {
    /// Returns the kind of work of a kernel.
    pub fn of(kernel: Kernel) -> Self {
        match kernel {
            Kernel::EmbedTokens => Self::Embedding,
            Kernel::RmsNorm => Self::Norm,
            Kernel::Rotary => Self::Rotary,
            Kernel::AttendDecode | Kernel::AttendPrefill => Self::Attention,
            Kernel::SiluMul => Self::Activation,
            Kernel::LoraShrink | Kernel::LoraExpand | Kernel::LoraExpandStream => Self::Adapters,
            Kernel::SampleTokens => Self::Sampling,
            Kernel::ScoreTargets
            | Kernel::ScoreTargetsBackward
            | Kernel::WidenToF32
            | Kernel::NarrowToBf16
            | Kernel::RmsNormBackward
            | Kernel::SiluMulBackward
            | Kernel::RotaryBackward
            | Kernel::AttendDelta
            | Kernel::AttendBackwardQueries
            | Kernel::AttendBackwardKeys => Self::Learning,
        }
    }
}

impl fmt::Display for WorkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::MatMul { inn, out } => return write!(f, "matmul {inn} to {out}"),
            Self::Embedding => "embedding",
            Self::Norm => "norms",
            Self::Rotary => "rotary, KV write",
            Self::Attention => "attention",
            Self::Activation => "activation",
            Self::Adapters => "adapters",
            Self::Sampling => "sampling",
            Self::Learning => "learning",
        };
        f.write_str(name)
    }
}
