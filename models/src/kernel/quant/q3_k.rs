//! Q3_K: super-blocks of 16 half blocks, each with a 6-bit scale; quants have 3 bits with an offset of 4.
//!
//! A panel has per super-block one `f16` per output (64 bytes), two signed bytes per block and output (512), a word of
//! high bits (1024), and two words of low bits (2048).

use super::bits::{self, Codes};
use super::{BlockAt, IntLanes, QuantForm};

/// The form of Q3_K.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Q3K;

const SCALES: usize = 64;
const HIGHS: usize = SCALES + 512;
const QUANTS: usize = HIGHS + 1024;

impl Q3K {
    /// Moves a super-block of output `lane` from GGML's layout into a panel.
    pub(in crate::kernel) fn pack(ggml: &[u8], to: &mut [u8], lane: usize) {
        let (highs, rest) = ggml.split_at(32);
        let (lows, rest) = rest.split_at(64);
        to[2 * lane..][..2].copy_from_slice(&rest[12..14]);
        for half in 0..16 {
            let low = rest[half % 8] >> (half / 8 * 4) & 15;
            let high = rest[8 + half % 4] >> (half / 4 * 2) & 3;
            to[SCALES + half * 32 + lane] = (low | high << 4).wrapping_sub(32);
        }
        for block in 0..8 {
            let codes: Codes = std::array::from_fn(|k| {
                let low = lows[block / 4 * 32 + k] >> (block % 4 * 2) & 3;
                low | (highs[k] >> block & 1) << 2
            });
            bits::put_ones(&codes, 2, &mut to[HIGHS..], block, lane);
            bits::put_twos(&codes, 0, &mut to[QUANTS..], block, lane);
        }
    }
}

impl QuantForm for Q3K {
    const SUPER: usize = 8;
    const BYTES: usize = QUANTS + 2048;
    const HALVES: bool = true;
    const MIN: bool = false;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let low: L = bits::twos(at, QUANTS, vector, (group, step), 0);
            low.or(bits::ones(at, HIGHS, vector, (group, step), 2)).sub_pairs(L::splat(0x0004_0004))
        }
    }

    #[inline(always)]
    unsafe fn factors<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::signed_bytes(at.byte(SCALES, 2, half, vector).cast()) }
    }
}
