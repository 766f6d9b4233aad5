//! Arithmetic of matrix multiplications with frozen weights.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::matmul::{matmul, matmul_add};
use super::matmul_output::Finish;
use super::quant::{IntegerIsa, product as integer_product};
use super::{Bf16Matrix, Packed, Team};
use crate::weights::Weights;

/// Arithmetic of matrix multiplications with frozen weights: those of a serving decoder's layers, and those underneath
/// a trained adapter, forward and backward. Everything else uses `f32`: embedding and vocabulary projection (except
/// with [`Int16`](Self::Int16)), adapters, trained weights and their gradients, norms, attention and loss. In training,
/// [`Bf16`](Self::Bf16) also rounds in the backward pass of a frozen vocabulary projection and, on CPUs that multiply
/// bf16 values by themselves, in that of attention.
///
/// The arithmetic is independent of the format in which a trained adapter is saved, which is a
/// [`Precision`](crate::gradient::Precision).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arithmetic {
    /// Weights as stored in the checkpoint, products and sums in `f32`.
    #[default]
    F32,
    /// Weights and activations rounded to bf16 (8 significant bits), sums in `f32`. On CPUs that multiply
    /// pairs of bf16 values (AVX512-BF16), this halves the time of matrix multiplications with many rows, as in
    /// prefill and training; with AMX, they take a fifth. Weights take 16 bits each whatever the checkpoint's format, so decoding few sequences
    /// of a quantized model, which is bound by reading weights, may be slower. Log-probabilities differ by the
    /// rounding: an engine and a learner that must agree need the same arithmetic.
    Bf16,
    /// Quantized weights as stored in the checkpoint, activations rounded to integers of 14 to 16 bits with a scale per
    /// 32, or per 64 for K-quants, sums exact in such blocks and in `f32` beyond. Includes the vocabulary projection.
    /// Weights that are not quantized are multiplied in `f32`. Only for serving: a gradient through rounded activations
    /// is not defined.
    Int16,
}

/// A matrix in the form that its arithmetic multiplies.
#[derive(Debug)]
pub(crate) enum Matrix {
    Exact(Packed),
    Rounded(Bf16Matrix),
    Integer(Packed),
}

impl Arithmetic {
    /// Arithmetic that serves `weights` fastest on a CPU without measurable cost: [`Int16`](Self::Int16) for K-quants,
    /// whose f32 products cost twice to three times as much, and `f32` for everything else. The choice follows a rule
    /// rather than a measurement, because a model must give the same numbers whenever it is loaded.
    pub fn suited_to(weights: &Weights) -> Self {
        if weights.has_super_blocks() { Self::Int16 } else { Self::F32 }
    }

    /// Prepares a weight matrix.
    pub(crate) fn matrix(self, weight: Packed) -> Matrix {
        match self {
            Self::Int16 if weight.is_quantized() => Matrix::Integer(weight),
            Self::F32 | Self::Int16 => Matrix::Exact(weight),
            Self::Bf16 => Matrix::Rounded(Bf16Matrix::of(&weight)),
        }
    }

    /// Computes the vocabulary projection `y = x · Wᵀ`, with x of shape (m, in).
    pub(crate) fn project(self, team: &Team, x: &[f32], m: usize, w: &Packed, y: &mut [f32]) {
        match self {
            Self::Int16 if w.is_quantized() => integer_product(IntegerIsa::best(), team, x, m, w, y, Finish::Set),
            _ => matmul(team, x, m, w, y),
        }
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int16 => "int16",
        })
    }
}

impl FromStr for Arithmetic {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "int16" => Ok(Self::Int16),
            _ => Err("`f32`, `bf16` or `int16`"),
        }
    }
}

impl Matrix {
    /// Number of rows.
    pub(crate) fn out(&self) -> usize {
        match self {
            Self::Exact(packed) | Self::Integer(packed) => packed.out(),
            Self::Rounded(rounded) => rounded.out(),
        }
    }

    /// Number of columns.
    pub(crate) fn inn(&self) -> usize {
        match self {
            Self::Exact(packed) | Self::Integer(packed) => packed.inn(),
            Self::Rounded(rounded) => rounded.inn(),
        }
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Exact(packed) | Self::Integer(packed) => packed.bytes(),
            Self::Rounded(rounded) => rounded.bytes(),
        }
    }

    /// Computes `y = x · Wᵀ`, with x of shape (m, in) and y of shape (m, out).
    pub(crate) fn matmul(&self, team: &Team, x: &[f32], m: usize, y: &mut [f32]) {
        match self {
            Self::Exact(packed) => matmul(team, x, m, packed, y),
            Self::Rounded(rounded) => rounded.matmul(team, x, m, y),
            Self::Integer(packed) => integer_product(IntegerIsa::best(), team, x, m, packed, y, Finish::Set),
        }
    }

    /// Computes `y += x · Wᵀ`. Each product is summed completely before it is added.
    pub(crate) fn matmul_add(&self, team: &Team, x: &[f32], m: usize, y: &mut [f32]) {
        match self {
            Self::Exact(packed) => matmul_add(team, x, m, packed, y),
            Self::Rounded(rounded) => rounded.matmul_add(team, x, m, y),
            Self::Integer(packed) => integer_product(IntegerIsa::best(), team, x, m, packed, y, Finish::Add),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetics_are_read_and_written() {
        for (text, arithmetic) in [("f32", Arithmetic::F32), ("bf16", Arithmetic::Bf16), ("int16", Arithmetic::Int16)] {
            assert_eq!(text.parse(), Ok(arithmetic));
            assert_eq!(arithmetic.to_string(), text);
        }
        for text in ["", "F32", "f16", "bf16 "] {
            assert_eq!(text.parse::<Arithmetic>(), Err("`f32`, `bf16` or `int16`"), "{text}");
        }
    }
}
