//! What of a decoder is learnt.

use serde::{Deserialize, Serialize};

/// What of a decoder is learnt.
#[derive(Debug, Clone, PartialEq)]
pub enum Tune {
    /// A low-rank adapter beside frozen weights.
    Lora(Lora),
    /// Every weight.
    Full,
}

/// A LoRA adapter: `W x + (alpha / rank) · B A x` (Hu et al. 2021, §4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rows of A and columns of B.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f32,
    /// The projections that get one.
    pub targets: Vec<Module>,
    /// Where the random values of A start; B starts at zero.
    pub seed: u64,
}

/// A projection of a decoder layer, by its name in PEFT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Module {
    /// Queries.
    QProj,
    /// Keys.
    KProj,
    /// Values.
    VProj,
    /// Attention's output.
    OProj,
    /// The gate of the feed-forward part.
    GateProj,
    /// What the gate multiplies.
    UpProj,
    /// Back to the residual stream.
    DownProj,
}
