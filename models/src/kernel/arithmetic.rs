//! The arithmetic of products with weights that stay as they are.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::matmul::{matmul, matmul_add};
use super::{Brain, Packed, Team};

/// The arithmetic of products with weights that stay as they are: those of the layers of a decoder that serves, and those
/// beside an adapter that is learnt, forward and backward. Everything else is `f32` in any case: embedding and projection
/// to the vocabulary, adapters, what is learnt and its gradients, norms, attention, the loss.
///
/// It is not the form that a learnt adapter is saved in: that is a [`Precision`](crate::gradient::Precision).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arithmetic {
    /// Weights as the checkpoint has them, products and sums in `f32`.
    #[default]
    F32,
    /// Weights and what they are multiplied by rounded to brain floats (8 significant bits), sums in `f32`. On
    /// processors that multiply pairs of these (AVX512-BF16) it halves the products of prefill and learning, whose rows
    /// are many. The weights take 16 bits each whatever the checkpoint's form, so that decoding few sequences of a
    /// quantised model, which reading weights bounds, may be slower. Log-probabilities differ by that rounding: where
    /// an engine's are to be a learner's, both take the same arithmetic.
    Bf16,
}

/// A matrix as products take it.
#[derive(Debug)]
pub(crate) enum Matrix {
    Exact(Packed),
    Rounded(Brain),
}

impl Arithmetic {
    /// A weight.
    pub(crate) fn matrix(self, weight: Packed) -> Matrix {
        match self {
            Self::F32 => Matrix::Exact(weight),
            Self::Bf16 => Matrix::Rounded(Brain::of(&weight)),
        }
    }

    /// A weight and its transpose.
    pub(crate) fn pair(self, weight: Packed) -> [Matrix; 2] {
        let transposed = match self {
            Self::F32 => Matrix::Exact(weight.transposed()),
            Self::Bf16 => Matrix::Rounded(Brain::transposed(&weight)),
        };
        [self.matrix(weight), transposed]
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

impl FromStr for Arithmetic {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            _ => Err("`f32` or `bf16`"),
        }
    }
}

impl Matrix {
    /// Rows.
    pub(crate) fn out(&self) -> usize {
        match self {
            Self::Exact(packed) => packed.out(),
            Self::Rounded(brain) => brain.out(),
        }
    }

    /// Columns.
    pub(crate) fn inn(&self) -> usize {
        match self {
            Self::Exact(packed) => packed.inn(),
            Self::Rounded(brain) => brain.inn(),
        }
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Exact(packed) => packed.bytes(),
            Self::Rounded(brain) => brain.bytes(),
        }
    }

    /// `y = x · Wᵀ`, with x of shape (m, in) and y of shape (m, out).
    pub(crate) fn matmul(&self, team: &Team, x: &[f32], m: usize, y: &mut [f32]) {
        match self {
            Self::Exact(packed) => matmul(team, x, m, packed, y),
            Self::Rounded(brain) => brain.matmul(team, x, m, y),
        }
    }

    /// `y += x · Wᵀ`; the product is summed up on its own before it is added.
    pub(crate) fn matmul_add(&self, team: &Team, x: &[f32], m: usize, y: &mut [f32]) {
        match self {
            Self::Exact(packed) => matmul_add(team, x, m, packed, y),
            Self::Rounded(brain) => brain.matmul_add(team, x, m, y),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetics_are_read_and_written() {
        for (text, arithmetic) in [("f32", Arithmetic::F32), ("bf16", Arithmetic::Bf16)] {
            assert_eq!(text.parse(), Ok(arithmetic));
            assert_eq!(arithmetic.to_string(), text);
        }
        for text in ["", "F32", "f16", "bf16 "] {
            assert_eq!(text.parse::<Arithmetic>(), Err("`f32` or `bf16`"), "{text}");
        }
    }
}
