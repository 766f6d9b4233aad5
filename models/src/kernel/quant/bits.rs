//! Arrangement of 1, 2 and 4-bit codes of a block in 32-bit words, and reading them in pairs.

use super::{BlockAt, IntLanes};
use crate::kernel::layout::{BLOCK, PANEL};

/// Codes of one output in one block, by input index.
pub(super) type Codes = [u8; BLOCK];

/// Writes the low four bits of the codes: four words, nibble `j` of word `g` for index `8g + j`.
pub(super) fn put_nibbles(codes: &Codes, part: &mut [u8], block: usize, lane: usize) {
    for (group, codes) in codes.chunks_exact(8).enumerate() {
        let word = codes.iter().rev().fold(0u32, |word, &code| word << 4 | u32::from(code & 15));
        put(word, part, block * 4 + group, lane);
    }
}

/// Writes two bits of each code: two words, each for 16 indices, with the first indices of pairs in the lower half.
pub(super) fn put_twos(codes: &Codes, shift: u32, part: &mut [u8], block: usize, lane: usize) {
    for (half, codes) in codes.chunks_exact(16).enumerate() {
        let mut word = 0;
        for step in 0..8 {
            let first = step / 4 * 8 + step % 4;
            word |= u32::from(codes[first] >> shift & 3) << (2 * step);
            word |= u32::from(codes[first + 4] >> shift & 3) << (2 * step + 16);
        }
        put(word, part, block * 2 + half, lane);
    }
}

/// Writes one bit of each code: one word, with the first indices of pairs in the lower half.
pub(super) fn put_ones(codes: &Codes, shift: u32, part: &mut [u8], block: usize, lane: usize) {
    let mut word = 0;
    for step in 0..16 {
        let first = step / 4 * 8 + step % 4;
        word |= u32::from(codes[first] >> shift & 1) << step;
        word |= u32::from(codes[first + 4] >> shift & 1) << (step + 16);
    }
    put(word, part, block, lane);
}

fn put(word: u32, part: &mut [u8], index: usize, lane: usize) {
    let at = (index * PANEL + lane) * 4;
    part[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// Pairs of four-bit codes of the part at `offset`.
///
/// # Safety
/// The same as for [`QuantForm::pairs`](super::QuantForm::pairs), with four words per output and block at `offset`.
#[inline(always)]
pub(super) unsafe fn nibbles<L: IntLanes>(at: BlockAt, offset: usize, vector: usize, group: usize, step: u32) -> L {
    // SAFETY: guaranteed by the caller.
    unsafe { L::load(at.word(offset, 4, group, vector)).right(4 * step).and(L::splat(0x000f_000f)) }
}

/// Pairs of two-bit codes of the part at `offset`, moved to bit `to` of each number.
///
/// # Safety
/// The same as for [`nibbles`], with two words per output and block.
#[inline(always)]
pub(super) unsafe fn twos<L: IntLanes>(
    at: BlockAt,
    offset: usize,
    vector: usize,
    (group, step): (usize, u32),
    to: u32,
) -> L {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let group_bits = L::load(at.word(offset, 2, group / 2, vector)).right(group as u32 % 2 * 8);
        shifted(group_bits, 2 * step, to).and(L::splat(0x0003_0003 << to))
    }
}

/// Pairs of one-bit codes of the part at `offset`, moved to bit `to` of each number.
///
/// # Safety
/// The same as for [`nibbles`], with one word per output and block.
#[inline(always)]
pub(super) unsafe fn ones<L: IntLanes>(
    at: BlockAt,
    offset: usize,
    vector: usize,
    (group, step): (usize, u32),
    to: u32,
) -> L {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let group_bits = L::load(at.word(offset, 1, 0, vector)).right(group as u32 * 4);
        shifted(group_bits, step, to).and(L::splat(0x0001_0001 << to))
    }
}

/// Moves bit `from` of each lane to bit `to`.
#[inline(always)]
unsafe fn shifted<L: IntLanes>(lanes: L, from: u32, to: u32) -> L {
    // SAFETY: guaranteed by the caller.
    unsafe { if from >= to { lanes.right(from - to) } else { lanes.left(to - from) } }
}
