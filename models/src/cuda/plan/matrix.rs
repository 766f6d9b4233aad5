//! Formats of a layer's matrices in device memory.

use std::fmt;
use std::str::FromStr;

use half::bf16;

use super::{Placement, PlacementAllocator};

/// Format of the matrices of a decoder's layers on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightFormat {
    /// `bf16`, the format of most checkpoints.
    #[default]
    Bf16,
    /// `e4m3` with one scale per row, half the size of `bf16`. Embeddings, the output projection to the vocabulary, and
    /// norms keep their formats.
    Fp8,
}

/// A matrix of a layer, of shape (out, in).
#[derive(Debug, Clone, Copy)]
pub enum MatrixLayout {
    /// Values in `bf16`.
    Half(Placement<bf16>),
    /// Values in `e4m3`, and a scale per row.
    Fp8 {
        /// Values, in the order of [`fp8::byte_of`](crate::cuda::kernel::fp8::byte_of) within a row.
        values: Placement<u8>,
        /// Scales of the rows.
        scales: Placement<f32>,
    },
}

impl WeightFormat {
    /// Places a matrix of shape (out, inn).
    pub(super) fn place(self, allocator: &mut PlacementAllocator, out: usize, inn: usize) -> MatrixLayout {
        match self {
            Self::Bf16 => MatrixLayout::Half(allocator.place(out * inn)),
            Self::Fp8 => MatrixLayout::Fp8 { values: allocator.place(out * inn), scales: allocator.place(out) },
        }
    }
}

impl From<Placement<bf16>> for MatrixLayout {
    fn from(place: Placement<bf16>) -> Self {
        Self::Half(place)
    }
}

impl FromStr for WeightFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "bf16" => Ok(Self::Bf16),
            "fp8" => Ok(Self::Fp8),
            _ => Err(format!("unknown weight format `{text}`: expected bf16 or fp8")),
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        })
    }
}
