//! IQ4_NL and IQ4_XS: nibbles that index a table of 16 unevenly spaced values.
//!
//! A panel of IQ4_NL has per block one `f16` per output (64 bytes) and the nibbles (512). One of IQ4_XS has per
//! super-block one `f16` per output (64), a signed byte per block and output (256), and the nibbles (4096).

use super::bits::{self, Codes};
use super::{BlockAt, IntLanes, QuantForm};

/// The form of IQ4_NL.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Iq4Nl;

/// The form of IQ4_XS.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Iq4Xs;

/// `kvalues_iq4nl` of ggml.
pub(super) const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

const NL_QUANTS: usize = 64;
const SCALES: usize = 64;
const XS_QUANTS: usize = SCALES + 256;

/// Codes of a block: index j in the low nibble of byte j, index j + 16 in its high nibble.
fn codes(quants: &[u8]) -> Codes {
    std::array::from_fn(|k| quants[k % 16] >> (k / 16 * 4) & 15)
}

impl Iq4Nl {
    /// Moves a block of output `lane` from GGML's layout into a panel.
    pub(in crate::kernel) fn pack(ggml: &[u8], to: &mut [u8], lane: usize) {
        to[2 * lane..][..2].copy_from_slice(&ggml[..2]);
        bits::put_nibbles(&codes(&ggml[2..18]), &mut to[NL_QUANTS..], 0, lane);
    }
}

impl Iq4Xs {
    /// Moves a super-block of output `lane` from GGML's layout into a panel.
    pub(in crate::kernel) fn pack(ggml: &[u8], to: &mut [u8], lane: usize) {
        to[2 * lane..][..2].copy_from_slice(&ggml[..2]);
        let high_bits = u16::from_le_bytes([ggml[2], ggml[3]]);
        for block in 0..8 {
            let low = ggml[4 + block / 2] >> (block % 2 * 4) & 15;
            let high = (high_bits >> (2 * block) & 3) as u8;
            to[SCALES + block * 32 + lane] = (low | high << 4).wrapping_sub(32);
            bits::put_nibbles(&codes(&ggml[8 + block * 16..][..16]), &mut to[XS_QUANTS..], block, lane);
        }
    }
}

impl QuantForm for Iq4Nl {
    const SUPER: usize = 1;
    const BYTES: usize = NL_QUANTS + 512;
    const HALVES: bool = false;
    const MIN: bool = false;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { bits::nibbles::<L>(at, NL_QUANTS, vector, group, step).look_up(&VALUES) }
    }
}

/// The largest sum of products fits an `i32`: quants of [`VALUES`], factors of 6 bits.
const _: () = assert!(127 * 32 * 64 * Iq4Xs::LIMIT as i64 <= i32::MAX as i64);

impl QuantForm for Iq4Xs {
    const SUPER: usize = 8;
    const BYTES: usize = XS_QUANTS + 4096;
    const HALVES: bool = false;
    const MIN: bool = false;
    const LIMIT: i16 = 8255;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { bits::nibbles::<L>(at, XS_QUANTS, vector, group, step).look_up(&VALUES) }
    }

    #[inline(always)]
    unsafe fn factors<L: IntLanes>(at: BlockAt, vector: usize, _: usize) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::signed_bytes(at.byte(SCALES, 1, 0, vector).cast()) }
    }
}
