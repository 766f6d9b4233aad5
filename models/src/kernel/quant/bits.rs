//! Arrangement of 1, 2 and 4-bit codes of a block in 32-bit words, and reading them in pairs.

use super::{BlockAt, IntLanes};
use crate::kernel::layout::{BLOCK, PANEL};

/// Codes of one output in one block, by input index.
pub(super) type Codes = [u8; BLOCK];

/// Writes the low four bits of the codes: four words, nibble `j` of word `g` for index `8g + j`.
pub(in crate::kernel) fn put_nibbles(codes: &Codes, part: &mut [u8], block: usize, lane: usize) {
    for (group, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
        // First one code per byte, then two codes per pair of bytes, and so on.
        let bytes = u64::from_le_bytes(*codes) & 0x0f0f_0f0f_0f0f_0f0f;
        let pairs = (bytes | bytes >> 4) & 0x00ff_00ff_00ff_00ff;
        let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
        put((fours | fours >> 16) as u32, part, block * 4 + group, lane);
    }
}

/// Writes two bits of each code: two words, each for 16 indices, with the first indices of pairs in the lower half.
pub(super) fn put_twos(codes: &Codes, shift: u32, part: &mut [u8], block: usize, lane: usize) {
    for (half, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
        let mut word = 0;
        for (group, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
            let bytes = u64::from_le_bytes(*codes) >> shift & 0x0303_0303_0303_0303;
            let pairs = (bytes | bytes >> 6) & 0x000f_000f_000f_000f;
            let fours = pairs | pairs >> 12;
            word |= halves(fours, 0xff) << (8 * group);
        }
        put(word, part, block * 2 + half, lane);
    }
}

/// Writes one bit of each code: one word, with the first indices of pairs in the lower half.
pub(super) fn put_ones(codes: &Codes, shift: u32, part: &mut [u8], block: usize, lane: usize) {
    let mut word = 0;
    for (group, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
        let bytes = u64::from_le_bytes(*codes) >> shift & 0x0101_0101_0101_0101;
        let pairs = (bytes | bytes >> 7) & 0x0003_0003_0003_0003;
        let fours = pairs | pairs >> 14;
        word |= halves(fours, 0xf) << (4 * group);
    }
    put(word, part, block, lane);
}

/// Masked lower ends of both halves of `bits`, in the halves of a word.
fn halves(bits: u64, mask: u64) -> u32 {
    (bits & mask) as u32 | ((bits >> 32 & mask) as u32) << 16
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
