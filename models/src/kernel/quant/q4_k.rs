//! Q4_K: super-blocks of 8 blocks, each with a 6-bit scale and minimum.
//!
//! | part | bytes per panel | content |
//! |---|---|---|
//! | scales | 64 | one `f16` per output |
//! | minima | 64 | one `f16` per output |
//! | block scales | 256 | one byte per block and output |
//! | block minima | 256 | one byte per block and output |
//! | quants | 4096 | four words of nibbles per block and output |

use super::bits::{self, Codes};
use super::legacy::halves;
use super::{BlockAt, IntLanes, Lanes, QuantForm};

/// The form of Q4_K.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Q4K;

/// Offset of the block scales; [`Q5K`](super::q5_k::Q5K) has the same parts up to the quants.
pub(super) const SCALES: usize = 128;
const MINIMA: usize = SCALES + 256;
/// End of the parts shared with Q5_K.
pub(super) const HEAD: usize = MINIMA + 256;

impl Q4K {
    /// Moves a super-block of output `lane` from GGML's layout into a panel.
    pub(in crate::kernel) fn pack(ggml: &[u8], to: &mut [u8], lane: usize) {
        put_head(ggml, to, lane);
        for block in 0..8 {
            bits::put_nibbles(&low_codes(&ggml[16..], block), &mut to[HEAD..], block, lane);
        }
    }
}

/// Writes scales and minima of both levels.
pub(super) fn put_head(ggml: &[u8], to: &mut [u8], lane: usize) {
    to[2 * lane..][..2].copy_from_slice(&ggml[..2]);
    to[64 + 2 * lane..][..2].copy_from_slice(&ggml[2..4]);
    let packed = &ggml[4..16];
    for block in 0..8 {
        // `get_scale_min_k4` of ggml: the upper two bits of the last four scales and minima lie above the six bits of
        // the first four.
        let (scale, minimum) = if block < 4 {
            (packed[block] & 63, packed[block + 4] & 63)
        } else {
            let low = packed[block + 4];
            (low & 15 | packed[block - 4] >> 6 << 4, low >> 4 | packed[block] >> 6 << 4)
        };
        to[SCALES + block * 32 + lane] = scale;
        to[MINIMA + block * 32 + lane] = minimum;
    }
}

/// Low four bits of a block: pairs of blocks share 32 bytes.
pub(super) fn low_codes(quants: &[u8], block: usize) -> Codes {
    std::array::from_fn(|k| quants[block / 2 * 32 + k] >> (block % 2 * 4) & 15)
}

/// Block scales.
///
/// # Safety
/// The same as for [`QuantForm::factors`].
#[inline(always)]
pub(super) unsafe fn factors<L: IntLanes>(at: BlockAt, vector: usize) -> L {
    // SAFETY: guaranteed by the caller.
    unsafe { L::unsigned_bytes(at.byte(SCALES, 1, 0, vector)) }
}

/// Product of both levels of minima, which GGML subtracts.
///
/// # Safety
/// The same as for [`QuantForm::minimum`].
#[inline(always)]
pub(super) unsafe fn minimum<L: IntLanes>(at: BlockAt, vector: usize) -> L::Floats {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let blocks = L::unsigned_bytes(at.byte(MINIMA, 1, 0, vector)).floats();
        halves::<L>(at, 64, vector).mul(blocks).mul(L::Floats::splat(-1.0))
    }
}

impl QuantForm for Q4K {
    const SUPER: usize = 8;
    const BYTES: usize = HEAD + 4096;
    const HALVES: bool = false;
    const MIN: bool = true;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { bits::nibbles(at, HEAD, vector, group, step) }
    }

    #[inline(always)]
    unsafe fn factors<L: IntLanes>(at: BlockAt, vector: usize, _: usize) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { factors(at, vector) }
    }

    #[inline(always)]
    unsafe fn minimum<L: IntLanes>(at: BlockAt, vector: usize, _: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { minimum::<L>(at, vector) }
    }
}
