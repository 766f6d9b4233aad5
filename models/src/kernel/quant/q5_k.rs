//! Q5_K: Q4_K with a fifth bit.
//!
//! After scales and minima as in [`q4_k`](super::q4_k), a panel has one word of high bits per block and output (1024
//! bytes), and the nibbles (4096 bytes).

use super::bits;
use super::q4_k::{self, HEAD};
use super::{BlockAt, IntLanes, QuantForm};

/// The form of Q5_K.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Q5K;

const QUANTS: usize = HEAD + 1024;

impl Q5K {
    /// Moves a super-block of output `lane` from GGML's layout into a panel.
    pub(in crate::kernel) fn pack(ggml: &[u8], to: &mut [u8], lane: usize) {
        q4_k::put_head(ggml, to, lane);
        let (highs, lows) = ggml[16..].split_at(32);
        for block in 0..8 {
            bits::put_ones(&std::array::from_fn(|k| highs[k]), block as u32, &mut to[HEAD..], block, lane);
            bits::put_nibbles(&q4_k::low_codes(lows, block), &mut to[QUANTS..], block, lane);
        }
    }
}

/// The largest sum of products fits an `i32`: codes of 5 bits, factors of 6.
const _: () = assert!(31 * 63 * 64 * Q5K::LIMIT as i64 <= i32::MAX as i64);

impl QuantForm for Q5K {
    const SUPER: usize = 8;
    const BYTES: usize = QUANTS + 4096;
    const HALVES: bool = false;
    const MIN: bool = true;
    const LIMIT: i16 = 17_180;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let low: L = bits::nibbles(at, QUANTS, vector, group, step);
            low.or(bits::ones(at, HEAD, vector, (group, step), 4))
        }
    }

    #[inline(always)]
    unsafe fn factors<L: IntLanes>(at: BlockAt, vector: usize, _: usize) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { q4_k::factors(at, vector) }
    }

    #[inline(always)]
    unsafe fn minimum<L: IntLanes>(at: BlockAt, vector: usize, _: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { q4_k::minimum::<L>(at, vector) }
    }
}
