//! Sixteen 32-bit lanes in four registers of NEON.

use std::arch::aarch64::*;

use super::lanes::{WIDTH, registers};
use super::{Floats, Ints};
use crate::kernel::int_lanes::IntLanes;

/// Applies a function of two vectors of `i16` to each register.
macro_rules! pairs {
    ($function:ident, $a:expr, $b:expr) => {
        registers!(i => vreinterpretq_s32_s16($function(vreinterpretq_s16_s32($a[i]), vreinterpretq_s16_s32($b[i]))))
    };
}

/// NEON implementation.
impl IntLanes for Ints {
    type Floats = Floats;

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: in all methods of this implementation, the trait's requirements on the caller.
        unsafe { [vdupq_n_s32(word.cast_signed()); 4] }
    }
    #[inline(always)]
    unsafe fn load(from: *const u32) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vld1q_s32(from.add(i * WIDTH).cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: as above.
        unsafe {
            registers!(i => vst1q_s32(to.add(i * WIDTH).cast(), self[i]));
        }
    }
    #[inline(always)]
    unsafe fn and(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vandq_s32(self[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn or(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vorrq_s32(self[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn right(self, count: u32) -> Self {
        // SAFETY: as above. The instruction for variable counts shifts left; a negative count shifts right.
        unsafe {
            let count = vdupq_n_s32(-count.cast_signed());
            registers!(i => vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(self[i]), count)))
        }
    }
    #[inline(always)]
    unsafe fn left(self, count: u32) -> Self {
        // SAFETY: as above.
        unsafe {
            let count = vdupq_n_s32(count.cast_signed());
            registers!(i => vshlq_s32(self[i], count))
        }
    }
    #[inline(always)]
    unsafe fn sub_pairs(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { pairs!(vsubq_s16, self, b) }
    }
    #[inline(always)]
    unsafe fn mul_pairs(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { pairs!(vmulq_s16, self, b) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vaddq_s32(self[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { registers!(i => vmulq_s32(self[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn look_up(self, table: &[i8; 16]) -> Self {
        // SAFETY: as above.
        unsafe {
            let table = vld1q_s8(table.as_ptr());
            registers!(i => {
                // The upper byte of each number looks up entry 0 and is shifted out.
                let entries = vreinterpretq_s16_s8(vqtbl1q_s8(table, vreinterpretq_u8_s32(self[i])));
                vreinterpretq_s32_s16(vshrq_n_s16::<8>(vshlq_n_s16::<8>(entries)))
            })
        }
    }
    #[inline(always)]
    unsafe fn pair_bytes(first: *const i8, second: *const i8) -> Self {
        // SAFETY: as above.
        unsafe {
            let first = vld1q_s8(first);
            let second = vld1q_s8(second);
            let low = [vmovl_s8(vget_low_s8(first)), vmovl_s8(vget_low_s8(second))];
            let high = [vmovl_high_s8(first), vmovl_high_s8(second)];
            [
                vreinterpretq_s32_s16(vzip1q_s16(low[0], low[1])),
                vreinterpretq_s32_s16(vzip2q_s16(low[0], low[1])),
                vreinterpretq_s32_s16(vzip1q_s16(high[0], high[1])),
                vreinterpretq_s32_s16(vzip2q_s16(high[0], high[1])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn pair_bits(first: u16, second: u16) -> Self {
        // Bits of the lanes of a register, in both numbers.
        const LANES: [u32; 4] = [0x1_0001, 0x2_0002, 0x4_0004, 0x8_0008];
        // SAFETY: as above.
        unsafe {
            let lanes = vld1q_u32(LANES.as_ptr());
            let bits = u32::from(first) | u32::from(second) << 16;
            registers!(i => {
                // Bits of the other number that the shift moves in lie above the four that are tested.
                let bits = vreinterpretq_u16_u32(vdupq_n_u32(bits >> (i * WIDTH)));
                let set = vtstq_u16(bits, vreinterpretq_u16_u32(lanes));
                vreinterpretq_s32_u16(vandq_u16(set, vdupq_n_u16(16)))
            })
        }
    }
    #[inline(always)]
    unsafe fn dot(self, x: Self, sum: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            registers!(i => {
                let weights = vreinterpretq_s16_s32(self[i]);
                let x = vreinterpretq_s16_s32(x[i]);
                let low = vmull_s16(vget_low_s16(weights), vget_low_s16(x));
                vaddq_s32(sum[i], vpaddq_s32(low, vmull_high_s16(weights, x)))
            })
        }
    }
    #[inline(always)]
    unsafe fn floats(self) -> Self::Floats {
        // SAFETY: as above.
        unsafe { registers!(i => vcvtq_f32_s32(self[i])) }
    }
    #[inline(always)]
    unsafe fn signed_bytes(from: *const i8) -> Self {
        // SAFETY: as above.
        unsafe {
            let bytes = vld1q_s8(from);
            let low = vmovl_s8(vget_low_s8(bytes));
            let high = vmovl_high_s8(bytes);
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        }
    }
    #[inline(always)]
    unsafe fn unsigned_bytes(from: *const u8) -> Self {
        // SAFETY: as above.
        unsafe {
            let bytes = vld1q_u8(from);
            let low = vmovl_u8(vget_low_u8(bytes));
            let high = vmovl_high_u8(bytes);
            let words = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ];
            registers!(i => vreinterpretq_s32_u32(words[i]))
        }
    }
}
