//! Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 weights with a scale each.

use super::{BlockAt, IntLanes, Lanes, QuantForm, bits};
use crate::kernel::layout::{BLOCK, Bits, BlockForm, PANEL};

/// Q4_0, or Q4_1 with `MIN`.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<const MIN: bool>;

/// Q5_0, or Q5_1 with `MIN`.
#[derive(Clone, Copy)]
pub(super) struct Fives<const MIN: bool>;

/// Q8_0.
#[derive(Clone, Copy)]
pub(super) struct Bytes;

/// Half-precision numbers of sixteen outputs, in the part of a block at `offset`.
///
/// # Safety
/// The same as for [`QuantForm::unit`], with one number per output at `offset`.
#[inline(always)]
pub(super) unsafe fn halves<L: IntLanes>(at: BlockAt, offset: usize, vector: usize) -> L::Floats {
    // SAFETY: guaranteed by the caller.
    unsafe { L::Floats::load_half(at.from.add(offset + vector * 32).cast()) }
}

impl<const MIN: bool> Nibbles<MIN> {
    const FORM: BlockForm = BlockForm { bits: Bits::Four, min: MIN };
}

impl<const MIN: bool> QuantForm for Nibbles<MIN> {
    const SUPER: usize = 1;
    const BYTES: usize = Self::FORM.bytes();
    const HALVES: bool = false;
    const MIN: bool = MIN;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let codes: L = bits::nibbles(at, Self::FORM.quants(), vector, group, step);
            if MIN { codes } else { codes.sub_pairs(L::splat(0x0008_0008)) }
        }
    }

    #[inline(always)]
    unsafe fn minimum<L: IntLanes>(at: BlockAt, vector: usize, _: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { halves::<L>(at, 64, vector) }
    }
}

impl<const MIN: bool> Fives<MIN> {
    const FORM: BlockForm = BlockForm { bits: Bits::Five, min: MIN };
}

impl<const MIN: bool> QuantForm for Fives<MIN> {
    const SUPER: usize = 1;
    const BYTES: usize = Self::FORM.bytes();
    const HALVES: bool = false;
    const MIN: bool = MIN;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller; the part of high bits has two 16-bit words per index.
        unsafe {
            let highs = at.from.add(Self::FORM.high()).cast::<u16>();
            let index = group * 8 + step as usize;
            let first = u16::from_le(*highs.add(index * 2 + vector));
            let second = u16::from_le(*highs.add((index + 4) * 2 + vector));
            let low: L = bits::nibbles(at, Self::FORM.quants(), vector, group, step);
            let codes = low.or(L::pair_bits(first, second));
            if MIN { codes } else { codes.sub_pairs(L::splat(0x0010_0010)) }
        }
    }

    #[inline(always)]
    unsafe fn minimum<L: IntLanes>(at: BlockAt, vector: usize, _: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { halves::<L>(at, 64, vector) }
    }
}

impl Bytes {
    const FORM: BlockForm = BlockForm { bits: Bits::Eight, min: false };
}

impl QuantForm for Bytes {
    const SUPER: usize = 1;
    const BYTES: usize = Self::FORM.bytes();
    const HALVES: bool = false;
    const MIN: bool = false;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        debug_assert!(group * 8 + (step as usize) + 4 < BLOCK);
        // SAFETY: guaranteed by the caller; a block has PANEL quants per index.
        unsafe {
            let index = group * 8 + step as usize;
            let first = at.from.add(Self::FORM.quants() + index * PANEL + vector * 16).cast::<i8>();
            L::pair_bytes(first, first.add(4 * PANEL))
        }
    }
}
