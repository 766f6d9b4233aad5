//! Q2_K: super-blocks of 16 half blocks, each with a 4-bit scale and minimum; quants have 2 bits.
//!
//! A panel has per super-block two `f16` per output (128 bytes), two bytes per block and output with the scale in the
//! lower nibble (512), and two words of quants (2048).

use super::bits::{self, Codes};
use super::legacy::halves;
use super::{BlockAt, IntLanes, Lanes, QuantForm};

/// The form of Q2_K.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Q2K;

const SCALES: usize = 128;
const QUANTS: usize = SCALES + 512;

impl Q2K {
    /// Moves a super-block of output `lane` from GGML's layout into a panel.
    pub(in crate::kernel) fn pack(ggml: &[u8], to: &mut [u8], lane: usize) {
        let (scales, rest) = ggml.split_at(16);
        let (quants, rest) = rest.split_at(64);
        to[2 * lane..][..2].copy_from_slice(&rest[..2]);
        to[64 + 2 * lane..][..2].copy_from_slice(&rest[2..4]);
        for (half, &scale) in scales.iter().enumerate() {
            to[SCALES + half * 32 + lane] = scale;
        }
        for block in 0..8 {
            let codes: Codes = std::array::from_fn(|k| quants[block / 4 * 32 + k] >> (block % 4 * 2) & 3);
            bits::put_twos(&codes, 0, &mut to[QUANTS..], block, lane);
        }
    }
}

impl QuantForm for Q2K {
    const SUPER: usize = 8;
    const BYTES: usize = QUANTS + 2048;
    const HALVES: bool = true;
    const MIN: bool = true;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { bits::twos(at, QUANTS, vector, (group, step), 0) }
    }

    #[inline(always)]
    unsafe fn factors<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::unsigned_bytes(at.byte(SCALES, 2, half, vector)).and(L::splat(15)) }
    }

    #[inline(always)]
    unsafe fn minimum<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let both = L::unsigned_bytes(at.byte(SCALES, 2, half, vector));
            halves::<L>(at, 64, vector).mul(both.right(4).floats()).mul(L::Floats::splat(-1.0))
        }
    }
}
