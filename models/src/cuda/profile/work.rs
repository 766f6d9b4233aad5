//! Kinds of work.

use std::fmt;

use crate::cuda::kernel::Kernel;

/// A kind of work in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// Products with the matrices of one shape.
    Product {
        /// Values of a row that goes in.
        inn: usize,
        /// Values of a row that comes out.
        out: usize,
    },
    /// Looking up the tokens' embeddings.
    Embedding,
    /// Norms of the stream.
    Norm,
    /// Biases, norms per head and rotation, and writing keys and values to the cache, which one kernel does.
    Rotary,
    /// Queries looking at the cache, of rows of one token and of longer ones.
    Attention,
    /// The feed-forward part's activation.
    Activation,
    /// What adapters add, without the products of the base model.
    Adapters,
    /// Choosing tokens.
    Sampling,
    /// What only passes that learn launch.
    Learning,
}

impl Work {
    /// What a kernel is for.
    pub fn of(kernel: Kernel) -> Self {
        match kernel {
            Kernel::Embed => Self::Embedding,
            Kernel::Norm => Self::Norm,
            Kernel::Rotary => Self::Rotary,
            Kernel::AttendDecode | Kernel::AttendPrefill => Self::Attention,
            Kernel::SiluMul => Self::Activation,
            Kernel::LoraShrink | Kernel::LoraExpand | Kernel::LoraExpandStream => Self::Adapters,
            Kernel::Sample => Self::Sampling,
            Kernel::Score
            | Kernel::ScoreBackward
            | Kernel::Widen
            | Kernel::Narrow
            | Kernel::NormBackward
            | Kernel::SiluMulBackward
            | Kernel::RotaryBackward
            | Kernel::AttendDelta
            | Kernel::AttendBackwardQueries
            | Kernel::AttendBackwardKeys => Self::Learning,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Product { inn, out } => return write!(f, "product {inn} to {out}"),
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
