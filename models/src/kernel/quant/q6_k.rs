//! Q6_K: super-blocks of 16 half blocks, each with an 8-bit scale; quants have 6 bits with an offset of 32.
//!
//! A panel has per super-block one `f16` per output (64 bytes), two signed bytes per block and output (512), two words
//! of two high bits (2048), and the nibbles (4096).

use super::bits::{self, Codes};
use super::{BlockAt, IntLanes, QuantForm};

/// The form of Q6_K.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Q6K;

const SCALES: usize = 64;
const HIGHS: usize = SCALES + 512;
const QUANTS: usize = HIGHS + 2048;

impl Q6K {
    /// Moves a super-block of output `lane` from GGML's layout into a panel.
    pub(in crate::kernel) fn pack(ggml: &[u8], to: &mut [u8], lane: usize) {
        let (lows, rest) = ggml.split_at(128);
        let (highs, rest) = rest.split_at(64);
        to[2 * lane..][..2].copy_from_slice(&rest[16..18]);
        for (half, &scale) in rest[..16].iter().enumerate() {
            to[SCALES + half * 32 + lane] = scale;
        }
        for block in 0..8 {
            // Blocks 0 to 3 share the first half of each array. Blocks 0 and 2 share bytes of low bits, and so do
            // blocks 1 and 3. All four share bytes of high bits.
            let part = block / 4;
            let within = block % 4;
            let codes: Codes = std::array::from_fn(|k| {
                let low = lows[part * 64 + within % 2 * 32 + k] >> (within / 2 * 4) & 15;
                low | (highs[part * 32 + k] >> (within * 2) & 3) << 4
            });
            bits::put_twos(&codes, 4, &mut to[HIGHS..], block, lane);
            bits::put_nibbles(&codes, &mut to[QUANTS..], block, lane);
        }
    }
}

/// The largest sum of products fits an `i32`: signed quants of 6 bits, factors of 8.
const _: () = assert!(32 * 128 * 64 * Q6K::LIMIT as i64 <= i32::MAX as i64);

impl QuantForm for Q6K {
    const SUPER: usize = 8;
    const BYTES: usize = QUANTS + 4096;
    const HALVES: bool = true;
    const MIN: bool = false;
    const LIMIT: i16 = 8191;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let low: L = bits::nibbles(at, QUANTS, vector, group, step);
            low.or(bits::twos(at, HIGHS, vector, (group, step), 4)).sub_pairs(L::splat(0x0020_0020))
        }
    }

    #[inline(always)]
    unsafe fn factors<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::signed_bytes(at.byte(SCALES, 2, half, vector).cast()) }
    }
}
