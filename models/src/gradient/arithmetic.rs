//! The arithmetic of products with frozen weights.

use serde::{Deserialize, Serialize};

use super::projection::Output;
use crate::kernel::{Brain, Packed, Team, matmul, matmul_add};

/// The arithmetic of products with frozen weights, forward and backward. Everything else is `f32` in any case: what is
/// learnt and its gradients, norms, attention, the loss.
///
/// It is not the form that a learnt adapter is saved in: that is a [`Precision`](super::Precision).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arithmetic {
    /// Weights as the checkpoint has them, products and sums in `f32`: what the engine computes.
    #[default]
    F32,
    /// Weights and what they are multiplied by rounded to brain floats (8 significant bits), sums in `f32`. The products
    /// take half the time on processors that multiply pairs of these (AVX512-BF16), and on others what those in `f32` take;
    /// transposes take half the memory. A learner's log-probabilities then differ from the engine's by that rounding.
    Bf16,
}

/// A frozen or learnt matrix as products take it.
#[derive(Debug)]
pub(super) enum Matrix {
    Exact(Packed),
    Rounded(Brain),
}

impl Arithmetic {
    /// A frozen weight and its transpose.
    pub(super) fn pair(self, weight: Packed) -> [Matrix; 2] {
        match self {
            Self::F32 => {
                let transposed = weight.transposed();
                [Matrix::Exact(weight), Matrix::Exact(transposed)]
            }
            Self::Bf16 => [Matrix::Rounded(Brain::of(&weight)), Matrix::Rounded(Brain::transposed(&weight))],
        }
    }
}

impl Matrix {
    /// Rows.
    pub(super) fn out(&self) -> usize {
        match self {
            Self::Exact(packed) => packed.out(),
            Self::Rounded(brain) => brain.out(),
        }
    }

    /// Columns.
    pub(super) fn inn(&self) -> usize {
        match self {
            Self::Exact(packed) => packed.inn(),
            Self::Rounded(brain) => brain.inn(),
        }
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Exact(packed) => packed.bytes(),
            Self::Rounded(brain) => brain.bytes(),
        }
    }

    /// The product with `rows` rows of `x`. Gives back where it went.
    pub(super) fn multiply<'a>(&self, team: &Team, x: &[f32], rows: usize, into: Output<'a>) -> Option<&'a mut [f32]> {
        match (self, into) {
            (_, Output::Nowhere) => None,
            (Self::Exact(packed), Output::Set(y)) => {
                matmul(team, x, rows, packed, y);
                Some(y)
            }
            (Self::Exact(packed), Output::Add(y)) => {
                matmul_add(team, x, rows, packed, y);
                Some(y)
            }
            (Self::Rounded(brain), Output::Set(y)) => {
                brain.matmul(team, x, rows, y);
                Some(y)
            }
            (Self::Rounded(brain), Output::Add(y)) => {
                brain.matmul_add(team, x, rows, y);
                Some(y)
            }
        }
    }
}
