//! Sixteen `f32` lanes in four registers of NEON, which every AArch64 CPU has.

use std::arch::aarch64::*;

use half::f16;

use super::Ints;
use crate::kernel::int_lanes::IntLanes;
use crate::kernel::lanes::Lanes;

/// Number of values per register.
pub(super) const WIDTH: usize = 4;

/// Evaluates an expression for each of the four registers.
macro_rules! registers {
    ($index:ident => $value:expr) => {{
        let part = |$index: usize| $value;
        [part(0), part(1), part(2), part(3)]
    }};
}
pub(super) use registers;

/// Loads four half-precision values from memory, of any alignment.
///
/// # Safety
/// The pointer must be valid for four values.
#[inline(always)]
pub(super) unsafe fn load_half(from: *const f16) -> float32x4_t {
    // SAFETY: guaranteed by the caller.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from.cast()))) }
}

/// NEON implementation.
impl Lanes for [float32x4_t; 4] {
    // A value takes four of 32 registers.
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: in all methods of this implementation, the trait's requirements on the caller.
        unsafe { [vdupq_n_f32(value); 4] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vld1q_f32(from.add(i * WIDTH))) }
    }
    #[inline(always)]
    unsafe fn load_half(from: *const f16) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => load_half(from.add(i * WIDTH))) }
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const i8) -> Self {
        // SAFETY: as above.
        unsafe { Ints::signed_bytes(from).floats() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe {
            registers!(i => vst1q_f32(to.add(i * WIDTH), self[i]));
        }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vfmaq_f32(c[i], self[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vaddq_f32(self[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vmulq_f32(self[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: as above. As on x86-64, the result is `b` where either operand is NaN; `vmaxq_f32` would return NaN.
        unsafe { registers!(i => vbslq_f32(vcgtq_f32(self[i], b[i]), self[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vrndnq_f32(self[i])) }
    }
    #[inline(always)]
    unsafe fn scale(self, n: Self) -> Self {
        // SAFETY: as above. The power is built from its exponent bits.
        unsafe {
            registers!(i => {
                let exponent = vaddq_s32(vcvtnq_s32_f32(n[i]), vdupq_n_s32(127));
                vmulq_f32(self[i], vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
            })
        }
    }
    #[inline(always)]
    unsafe fn keep_from(self, x: Self, bound: f32) -> Self {
        // SAFETY: as above.
        unsafe {
            let bound = vdupq_n_f32(bound);
            registers!(i => {
                let kept = vandq_u32(vreinterpretq_u32_f32(self[i]), vcgeq_f32(x[i], bound));
                vreinterpretq_f32_u32(kept)
            })
        }
    }
}
