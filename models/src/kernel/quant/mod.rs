//! Quantized storage forms, one per file, and multiplication with activations in 16-bit integers.
//!
//! Every form is a way to read *pairs* of small integers from a panel, sixteen outputs at a time, in the order that
//! integer dot products need: in each group of eight input indices, step `j` pairs index `j` with index `j + 4`. The
//! same reading serves products in integers and unpacking to `f32`.

mod activations;
mod bits;
mod iq4;
mod isa;
mod legacy;
mod matmul;
#[cfg(target_arch = "x86_64")]
mod planes;
mod q2_k;
mod q3_k;
mod q4_k;
mod q5_k;
mod q6_k;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod test;
mod tile;
mod unpack;
mod unpacked;

use super::int_lanes::IntLanes;
use super::lanes::Lanes;
use super::layout::SuperForm;
use super::prefetch::prefetch;

pub(super) use bits::put_nibbles;
pub(super) use isa::IntegerIsa;
pub(super) use matmul::product;
pub(super) use unpack::{unpack, unpack_vector};

/// Calls `$body` with `$form` as the [`QuantForm`] of a [`Form`](super::layout::Form), or `$other` for plain floats.
macro_rules! with_form {
    ($value:expr, $form:ident => $body:expr, $other:expr) => {{
        use crate::kernel::layout::Bits::{Eight, Five, Four};
        use crate::kernel::layout::{BlockForm, Form, SuperForm};
        use crate::kernel::quant::{iq4, legacy, q2_k, q3_k, q4_k, q5_k, q6_k};
        macro_rules! run {
            ($found:ty) => {{
                type $form = $found;
                $body
            }};
        }
        match $value {
            Form::Block(BlockForm { bits: Four, min: false }) => run!(legacy::Nibbles<false>),
            Form::Block(BlockForm { bits: Four, min: true }) => run!(legacy::Nibbles<true>),
            Form::Block(BlockForm { bits: Five, min: false }) => run!(legacy::Fives<false>),
            Form::Block(BlockForm { bits: Five, min: true }) => run!(legacy::Fives<true>),
            Form::Block(BlockForm { bits: Eight, .. }) => run!(legacy::Bytes),
            Form::Super(SuperForm::Q2K) => run!(q2_k::Q2K),
            Form::Super(SuperForm::Q3K) => run!(q3_k::Q3K),
            Form::Super(SuperForm::Q4K) => run!(q4_k::Q4K),
            Form::Super(SuperForm::Q5K) => run!(q5_k::Q5K),
            Form::Super(SuperForm::Q6K) => run!(q6_k::Q6K),
            Form::Super(SuperForm::Iq4Nl) => run!(iq4::Iq4Nl),
            Form::Super(SuperForm::Iq4Xs) => run!(iq4::Iq4Xs),
            Form::F32 | Form::F16 | Form::Bf16 => $other,
        }
    }};
}
use with_form;

impl SuperForm {
    /// Size of a super-block of a panel, in bytes.
    pub(in crate::kernel) fn bytes(self) -> usize {
        with_form!(Form::Super(self), W => W::BYTES, 0)
    }

    /// Moves one GGML block of output `lane` into the super-block `to` of a panel.
    pub(in crate::kernel) fn pack(self, ggml: &[u8], to: &mut [u8], lane: usize) {
        match self {
            Self::Q2K => q2_k::Q2K::pack(ggml, to, lane),
            Self::Q3K => q3_k::Q3K::pack(ggml, to, lane),
            Self::Q4K => q4_k::Q4K::pack(ggml, to, lane),
            Self::Q5K => q5_k::Q5K::pack(ggml, to, lane),
            Self::Q6K => q6_k::Q6K::pack(ggml, to, lane),
            Self::Iq4Nl => iq4::Iq4Nl::pack(ggml, to, lane),
            Self::Iq4Xs => iq4::Iq4Xs::pack(ggml, to, lane),
        }
    }
}

/// Number of groups of eight input indices in a block.
const GROUPS: usize = 4;
/// Number of pairs in a group.
const STEPS: usize = 4;
/// Number of pairs in a block.
const PAIRS: usize = GROUPS * STEPS;
/// Number of quads in a block. A quad consists of the pairs of two steps.
const QUADS: usize = PAIRS / 2;

/// Location of a block inside a panel.
#[derive(Debug, Clone, Copy)]
struct BlockAt {
    /// First byte of the super-block.
    from: *const u8,
    /// Index of the block inside the super-block.
    index: usize,
}

/// Prefetch distance in bytes; the hardware prefetcher stops at page boundaries.
const AHEAD: usize = 4096;

impl BlockAt {
    /// Location of block `block` of a panel of form `W` that begins at `from`.
    #[inline(always)]
    fn of<W: QuantForm>(from: *const u8, block: usize) -> Self {
        Self { from: from.wrapping_add(block / W::SUPER * W::BYTES), index: block % W::SUPER }
    }

    /// Prefetches the weights that lie [`AHEAD`] bytes after this block.
    #[inline(always)]
    fn prefetch<W: QuantForm>(self) {
        let share = W::BYTES / W::SUPER;
        prefetch(self.from.wrapping_add(self.index * share + AHEAD), share);
    }

    /// Address of 32-bit word `word` of outputs `16 · vector` and following, in a part of the super-block that starts
    /// at `offset` and has `words` words per output and block.
    #[inline(always)]
    fn word(self, offset: usize, words: usize, word: usize, vector: usize) -> *const u32 {
        self.from.wrapping_add(offset + ((self.index * words + word) * super::layout::PANEL + vector * 16) * 4).cast()
    }

    /// Address of byte `byte` of outputs `16 · vector` and following, in a part that starts at `offset` and has
    /// `bytes` bytes per output and block.
    #[inline(always)]
    fn byte(self, offset: usize, bytes: usize, byte: usize, vector: usize) -> *const u8 {
        self.from.wrapping_add(offset + (self.index * bytes + byte) * super::layout::PANEL + vector * 16)
    }
}

/// A storage form whose weights are `scale · quant + minimum`.
///
/// In super-blocks, a scale is the product of an integer factor and the super-block's unit.
///
/// # Safety
/// In all methods, `at` must lie in a panel of this form, `vector` must be 0 or 1, `group` and `step` below 4,
/// `half` below 2, and the CPU must support the instruction set of `L`.
trait QuantForm: Copy {
    /// Number of blocks in a super-block.
    const SUPER: usize;
    /// Size of a super-block of a panel, in bytes.
    const BYTES: usize;
    /// If `true`, the halves of a block have different factors and minima.
    const HALVES: bool;
    /// If `true`, weights have minima.
    const MIN: bool;
    /// Number of adjacent blocks whose activations share a scale and whose products are summed in integers: 2 in
    /// super-blocks, which have a common unit.
    const SHARED: usize = if Self::SUPER > 1 { 2 } else { 1 };
    /// Largest magnitude of a rounded activation: the sum of `32 · SHARED` products of it with the largest quant and
    /// factor fits an `i32`.
    const LIMIT: i16 = i16::MAX;
    /// If `true`, quants need no factor, because the factor is 1 or already multiplied into them.
    const FOLDED: bool = Self::SUPER == 1;
    /// If `true`, the weights come from main memory.
    const STREAMED: bool = true;

    /// Quants of the input indices `8 · group + step` and `8 · group + step + 4`.
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L;

    /// Quants of the steps `2 · quad` and `2 · quad + 1`, counted through the block, as the signed bytes of
    /// [`IntLanes::low_bytes`].
    #[inline(always)]
    unsafe fn quads<L: IntLanes>(at: BlockAt, vector: usize, quad: usize) -> L {
        let group = quad * 2 / STEPS;
        let step = (quad * 2 % STEPS) as u32;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let pairs = Self::pairs::<L>(at, vector, group, step);
            pairs.low_bytes(Self::pairs(at, vector, group, step + 1))
        }
    }

    /// Factors, whose products with quants fit an `i16`.
    #[inline(always)]
    unsafe fn factors<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L {
        let _ = (at, vector, half);
        // SAFETY: guaranteed by the caller.
        unsafe { L::splat(1) }
    }

    /// Units of the super-block: the half-precision numbers at its beginning, unless a form has others.
    #[inline(always)]
    unsafe fn unit<L: IntLanes>(at: BlockAt, vector: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { legacy::halves::<L>(at, 0, vector) }
    }

    /// Scales.
    #[inline(always)]
    unsafe fn scale<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let unit = Self::unit::<L>(at, vector);
            if Self::FOLDED { unit } else { unit.mul(Self::factors::<L>(at, vector, half).floats()) }
        }
    }

    /// Minima.
    #[inline(always)]
    unsafe fn minimum<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L::Floats {
        let _ = (at, vector, half);
        // SAFETY: guaranteed by the caller.
        unsafe { L::Floats::splat(0.0) }
    }
}
