//! Memory layout of packed weight matrices.
//!
//! Outputs are grouped in panels of [`PANEL`]. A panel is contiguous and runs along the input dimension, so a
//! matrix multiplication reads memory strictly forward. In the float forms, each input index has [`PANEL`] values,
//! one per output. In the block forms, each [`BLOCK`] input indices have these parts in sequence:
//!
//! | part | bytes | content |
//! |---|---|---|
//! | scales | 64 | one `f16` per output |
//! | minima | 64, only with `min` | one `f16` per output |
//! | high bits | 128, only with 5 bits | per input index a `u32`, bit `o` for output `o` |
//! | 8-bit quants | 1024 | per input index one `i8` per output |
//! | 4-bit quants | 512 | per 8 input indices and output a `u32`, its nibble `j` for index `j` |
//!
//! The nibble order lets one 64-byte load feed 16 outputs at 8 input indices with one shift each.
//!
//! Forms with super-blocks are laid out by the files of [`quant`](super::quant), with the same nibbles.

use half::{bf16, f16};

use super::quant::put_nibbles;

/// Number of outputs per panel.
pub(crate) const PANEL: usize = 32;
/// Number of input indices that share a scale, in the block forms.
pub(crate) const BLOCK: usize = 32;

/// Storage form of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    F32,
    F16,
    Bf16,
    Block(BlockForm),
    Super(SuperForm),
}

/// Forms whose panels are laid out by [`quant`](super::quant), mostly in super-blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SuperForm {
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
}

/// Blocks of [`BLOCK`] quants with a scale: `w = scale · (q - offset) + min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockForm {
    pub(crate) bits: Bits,
    /// If `true`, each block has a minimum and the offset is 0. Otherwise the offset of an unsigned quant is half
    /// its range.
    pub(crate) min: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bits {
    Four,
    Five,
    /// Signed, offset 0.
    Eight,
}

impl Form {
    /// Size of one panel with `inn` input indices in bytes; `inn` must be a multiple of [`BLOCK`] in the block
    /// forms.
    pub(crate) fn panel_bytes(self, inn: usize) -> usize {
        match self {
            Self::F32 => inn * PANEL * 4,
            Self::F16 | Self::Bf16 => inn * PANEL * 2,
            Self::Block(block) => inn / BLOCK * block.bytes(),
            Self::Super(form) => inn / form.len() * form.bytes(),
        }
    }

    /// Location of input index `start`, a multiple of [`BLOCK`] in the quantized forms: a byte offset in a panel, and
    /// the number of blocks to skip after it, which is 0 except inside a super-block.
    pub(crate) fn locate(self, start: usize) -> (usize, usize) {
        match self {
            Self::Super(form) => (start / form.len() * form.bytes(), start % form.len() / BLOCK),
            form => (form.panel_bytes(start), 0),
        }
    }
}

impl SuperForm {
    /// Number of input indices of a super-block.
    pub(crate) fn len(self) -> usize {
        if self == Self::Iq4Nl { BLOCK } else { 8 * BLOCK }
    }
}

impl BlockForm {
    /// Offset of the high bits, after scales and minima.
    pub(crate) const fn high(self) -> usize {
        if self.min { 128 } else { 64 }
    }

    /// Offset of the quants.
    pub(crate) const fn quants(self) -> usize {
        self.high() + if matches!(self.bits, Bits::Five) { 128 } else { 0 }
    }

    /// Size of one block of a panel, in bytes.
    pub(crate) const fn bytes(self) -> usize {
        self.quants() + if matches!(self.bits, Bits::Eight) { 1024 } else { 512 }
    }

    /// Offset subtracted from a stored quant.
    pub(crate) fn offset(self) -> i32 {
        match self.bits {
            Bits::Four if !self.min => 8,
            Bits::Five if !self.min => 16,
            _ => 0,
        }
    }

    /// Moves one GGML block of output `lane` into the panel block `to`, which must be zero where nothing has been
    /// written yet.
    pub(crate) fn pack(self, ggml: &[u8], to: &mut [u8], lane: usize) {
        to[2 * lane..2 * lane + 2].copy_from_slice(&ggml[..2]);
        if self.min {
            to[64 + 2 * lane..66 + 2 * lane].copy_from_slice(&ggml[2..4]);
        }
        let rest = &ggml[if self.min { 4 } else { 2 }..];
        let quants = &mut to[self.quants()..];
        if self.bits == Bits::Eight {
            for (k, &quant) in rest.iter().enumerate() {
                quants[k * PANEL + lane] = quant;
            }
            return;
        }
        // GGML stores index j in the low nibble of byte j and index j + 16 in its high nibble.
        let bytes = &rest[rest.len() - 16..];
        put_nibbles(&std::array::from_fn(|k| bytes[k % 16] >> (k / 16 * 4)), quants, 0, lane);
        if self.bits == Bits::Five {
            let mask = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
            for k in 0..BLOCK {
                to[self.high() + 4 * k + lane / 8] |= ((mask >> k & 1) as u8) << (lane % 8);
            }
        }
    }

    /// Value of output `lane` at index `k` of the panel block `from`.
    pub(crate) fn value(self, from: &[u8], k: usize, lane: usize) -> f32 {
        let scale = half_at(from, lane);
        let quants = &from[self.quants()..];
        let quant = if self.bits == Bits::Eight {
            i32::from(quants[k * PANEL + lane] as i8)
        } else {
            let low = (quants[nibble_at(k, lane)] >> (k % 2 * 4)) & 15;
            let high = self.bits == Bits::Five && from[self.high() + 4 * k + lane / 8] >> (lane % 8) & 1 == 1;
            i32::from(low) + if high { 16 } else { 0 }
        };
        let product = scale * (quant - self.offset()) as f32;
        if self.min { product + half_at(&from[64..], lane) } else { product }
    }
}

/// Index of the byte with the nibble of index `k` and output `lane`; odd indices use its high half.
fn nibble_at(k: usize, lane: usize) -> usize {
    (k / 8 * PANEL + lane) * 4 + k % 8 / 2
}

/// Value number `lane` of the `f16` values in `bytes`.
pub(crate) fn half_at(bytes: &[u8], lane: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]).to_f32()
}

/// Value number `lane` of the `bf16` values in `bytes`.
pub(crate) fn bhalf_at(bytes: &[u8], lane: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]).to_f32()
}
