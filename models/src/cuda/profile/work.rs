//! Kinds of work in a step.

use std::fmt;

use crate::cuda::kernel::CudaKernel;

/// A kind of work in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// Matrix multiplications with weights of one shape.
    MatMul {
        /// Width of an input row.
        inn: usize,
        /// Width of an output row.
        out: usize,
    },
    /// Dequantization of weights for matrix multiplications of many rows.
    Dequantization,
    /// Rounding of activations to `e4m3` for matrix multiplications of many rows.
    Quantization,
    /// Embedding lookup.
    Embedding,
    /// RMS norms of the residual stream.
    Norm,
    /// The fused kernel of biases, norms per head, rotation, and KV cache writes.
    Rotary,
    /// Attention, decoding and prefill.
    Attention,
    /// Activation of the feed-forward block, where it is a kernel of its own.
    Activation,
    /// LoRA kernels, without the matrix multiplications of the base model.
    Adapters,
    /// Sampling of tokens.
    Sampling,
    /// Kernels that only training launches.
    Learning,
}

impl WorkKind {
    /// Returns the kind of work of a kernel. `None` for a kernel that multiplies matrices, whose kind depends on their
    /// shape.
    pub fn of(kernel: CudaKernel) -> Option<Self> {
        Some(match kernel {
            CudaKernel::SkinnyMatMul
            | CudaKernel::SkinnySiluMul
            | CudaKernel::SkinnyMatMulFp8
            | CudaKernel::SkinnySiluMulFp8 => return None,
            CudaKernel::DequantizeFp8 => Self::Dequantization,
            CudaKernel::QuantizeFp8 => Self::Quantization,
            CudaKernel::EmbedTokens => Self::Embedding,
            CudaKernel::RmsNorm => Self::Norm,
            CudaKernel::Rotary => Self::Rotary,
            CudaKernel::AttendDecode | CudaKernel::AttendPrefill => Self::Attention,
            CudaKernel::SiluMul => Self::Activation,
            CudaKernel::LoraShrink | CudaKernel::LoraExpand | CudaKernel::LoraExpandStream => Self::Adapters,
            CudaKernel::SampleScan | CudaKernel::SampleWeigh | CudaKernel::SampleGather | CudaKernel::SampleChoose => {
                Self::Sampling
            }
            CudaKernel::ScoreTargets
            | CudaKernel::ScoreTargetsBackward
            | CudaKernel::WidenToF32
            | CudaKernel::NarrowToBf16
            | CudaKernel::RmsNormBackward
            | CudaKernel::SiluMulBackward
            | CudaKernel::RotaryBackward
            | CudaKernel::AttendDelta
            | CudaKernel::AttendBackwardQueries
            | CudaKernel::AttendBackwardKeys => Self::Learning,
        })
    }
}

impl fmt::Display for WorkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::MatMul { inn, out } => return write!(f, "matmul {inn} to {out}"),
            Self::Dequantization => "dequantization",
            Self::Quantization => "quantization",
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
