//! Lanes of NEON on CPUs with products of bytes (FEAT_DotProd, in nearly all since 2018): one instruction multiplies 16
//! bytes, where the one for 16-bit numbers multiplies 4.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Ints;
use super::lanes::registers;
use crate::kernel::int_lanes::IntLanes;
use crate::kernel::same_lanes::delegate_lanes;

/// NEON implementation with products of bytes; needs `dotprod`, and with `MIXED` also `i8mm`, for products of signed
/// with unsigned bytes.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct DotLanes<const MIXED: bool>(Ints);

/// Computes `vdotq_s32`, which is not stable, of the bytes of both vectors.
#[inline]
#[target_feature(enable = "dotprod")]
pub(super) fn dot(sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the instruction only reads and writes the named registers.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Computes `vusdotq_s32`, which is not stable, with the signed bytes first.
#[inline]
#[target_feature(enable = "i8mm")]
fn mixed_dot(sum: int32x4_t, signed: int32x4_t, unsigned: int32x4_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the instruction only reads and writes the named registers.
    unsafe {
        asm!(
            "usdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) unsigned, in(vreg) signed,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Applies a function of two vectors of bytes to each register.
macro_rules! bytes {
    ($function:ident, $a:expr, $b:expr) => {
        Self(registers!(i => vreinterpretq_s32_s8($function(vreinterpretq_s8_s32($a.0[i]), vreinterpretq_s8_s32($b.0[i])))))
    };
}

impl<const MIXED: bool> IntLanes for DotLanes<MIXED> {
    delegate_lanes!(always, Ints);

    const BYTE_DOT: bool = true;
    const UNSIGNED_BYTE_DOT: bool = MIXED;

    #[inline(always)]
    unsafe fn dot(self, x: Self, sum: Self) -> Self {
        // SAFETY: in all methods of this implementation, the trait's requirements on the caller.
        unsafe { Self(self.0.dot(x.0, sum.0)) }
    }
    #[inline(always)]
    unsafe fn xor(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { bytes!(veorq_s8, self, b) }
    }
    #[inline(always)]
    unsafe fn low_bytes(self, next: Self) -> Self {
        // SAFETY: as above.
        unsafe { bytes!(vtrn1q_s8, self, next) }
    }
    #[inline(always)]
    unsafe fn high_bytes(self, next: Self) -> Self {
        // SAFETY: as above.
        unsafe { bytes!(vtrn2q_s8, self, next) }
    }
    #[inline(always)]
    unsafe fn dot_bytes(self, x: Self, sum: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(registers!(i => dot(sum.0[i], self.0[i], x.0[i]))) }
    }
    #[inline(always)]
    unsafe fn dot_unsigned(self, x: Self, sum: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(registers!(i => mixed_dot(sum.0[i], self.0[i], x.0[i]))) }
    }
}
