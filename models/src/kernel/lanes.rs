//! Sixteen `f32` lanes: one register of AVX-512, two of AVX2, four of NEON, or an array where none exists.
//!
//! A kernel is written once over [`Lanes`] and compiled for each implementation, inside a function that enables the
//! instruction set. Everything here and in such a kernel is `inline(always)`, so it is inlined into that function.

use half::f16;

/// Number of lanes in one value.
pub(crate) const LANES: usize = 16;

/// Sixteen `f32` values.
///
/// # Safety
/// Every method may only be called where the implementation's instruction set is available; pointers must be valid for
/// sixteen values.
pub(crate) trait Lanes: Copy {
    /// If `true`, one value is one of 32 registers: a kernel may keep about 24 values in flight.
    const WIDE: bool;

    /// Broadcasts a value to all lanes.
    unsafe fn splat(value: f32) -> Self;
    /// Loads sixteen values from memory, of any alignment.
    unsafe fn load(from: *const f32) -> Self;
    /// Loads sixteen half-precision values from memory, of any alignment.
    unsafe fn load_half(from: *const f16) -> Self;
    /// Loads sixteen signed bytes from memory, of any alignment.
    unsafe fn load_bytes(from: *const i8) -> Self;
    /// Stores sixteen values to memory, of any alignment.
    unsafe fn store(self, to: *mut f32);
    /// Computes `self · b + c`, rounded once where the hardware can.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// Lane-wise sum.
    unsafe fn add(self, b: Self) -> Self;
    /// Lane-wise product.
    unsafe fn mul(self, b: Self) -> Self;
    /// Lane-wise maximum.
    unsafe fn max(self, b: Self) -> Self;
    /// Nearest integer of each lane.
    unsafe fn round(self) -> Self;
    /// Computes `self · 2^n` for an integer `n` in -126..=127.
    unsafe fn scale(self, n: Self) -> Self;
    /// Keeps `self` where `x >= bound`, and 0 elsewhere.
    unsafe fn keep_from(self, x: Self, bound: f32) -> Self;

    /// Largest lane.
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        let mut lanes = [0.0; LANES];
        // SAFETY: sixteen values fit; the caller guarantees the instruction set.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// Sum of all lanes.
    #[inline(always)]
    unsafe fn total(self) -> f32 {
        let mut lanes = [0.0; LANES];
        // SAFETY: as in `largest`.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes.into_iter().sum()
    }

    /// Computes `e^self` for arguments of at most 0, with a relative error of about 1e-7. Below -87.3, including
    /// minus infinity, the result is 0.
    ///
    /// The argument is split as `n · ln 2 + r`; `e^r` is the polynomial of Cephes' `expf`.
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        const LOWEST: f32 = -87.3;
        // SAFETY: only register operations; the caller guarantees the instruction set.
        unsafe {
            let x = self.max(Self::splat(LOWEST));
            let n = x.mul(Self::splat(std::f32::consts::LOG2_E)).round();
            let r = n.fma(Self::splat(-0.693_359_4), x);
            let r = n.fma(Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_1e-4);
            for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
                p = p.fma(r, Self::splat(coefficient));
            }
            let p = p.fma(r.mul(r), r).add(Self::splat(1.0));
            p.scale(n).keep_from(self, LOWEST)
        }
    }
}

/// Portable implementation, vectorized by the compiler for the target's baseline.
impl Lanes for [f32; LANES] {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_half(from: *const f16) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[f16; LANES]>().read_unaligned() }.map(f16::to_f32)
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const i8) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // `mul_add` would be a library call without the instruction.
        std::array::from_fn(|i| self[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] * b[i])
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        std::array::from_fn(|i| if self[i] > b[i] { self[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // Adding and subtracting 1.5 · 2^23 rounds to nearest without a library call.
        const MAGIC: f32 = 12_582_912.0;
        std::array::from_fn(|i| (self[i] + MAGIC) - MAGIC)
    }
    #[inline(always)]
    unsafe fn scale(self, n: Self) -> Self {
        std::array::from_fn(|i| self[i] * f32::from_bits(((n[i] as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    unsafe fn keep_from(self, x: Self, bound: f32) -> Self {
        std::array::from_fn(|i| if x[i] >= bound { self[i] } else { 0.0 })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use half::f16;

    use super::Lanes;
    use crate::kernel::int_lanes::IntLanes;

    /// AVX-512 implementation; needs `avx512f`.
    impl Lanes for __m512 {
        const WIDE: bool = true;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: in all methods of this implementation, the trait's requirements on the caller.
            unsafe { _mm512_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_half(from: *const f16) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bytes(from: *const i8) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(to, self) }
        }
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(self, b, c) }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_add_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_mul_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_max_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn round(self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_roundscale_ps::<0>(self) }
        }
        #[inline(always)]
        unsafe fn scale(self, n: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_scalef_ps(self, n) }
        }
        #[inline(always)]
        unsafe fn keep_from(self, x: Self, bound: f32) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_set1_ps(bound)), self) }
        }
        #[inline(always)]
        unsafe fn largest(self) -> f32 {
            // SAFETY: as above.
            unsafe { _mm512_reduce_max_ps(self) }
        }
        #[inline(always)]
        unsafe fn total(self) -> f32 {
            // SAFETY: as above.
            unsafe { _mm512_reduce_add_ps(self) }
        }
    }

    /// AVX2 implementation; needs `avx2`, `fma` and `f16c`.
    impl Lanes for [__m256; 2] {
        const WIDE: bool = false;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: in all methods of this implementation, the trait's requirements on the caller.
            unsafe { [_mm256_set1_ps(value); 2] }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
        }
        #[inline(always)]
        unsafe fn load_half(from: *const f16) -> Self {
            // SAFETY: as above.
            unsafe {
                let halves = [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast())];
                [_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])]
            }
        }
        #[inline(always)]
        unsafe fn load_bytes(from: *const i8) -> Self {
            // SAFETY: as above.
            unsafe { <[__m256i; 2]>::signed_bytes(from).floats() }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_ps(to, self[0]);
                _mm256_storeu_ps(to.add(8), self[1]);
            }
        }
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_fmadd_ps(self[0], b[0], c[0]), _mm256_fmadd_ps(self[1], b[1], c[1])] }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_add_ps(self[0], b[0]), _mm256_add_ps(self[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_mul_ps(self[0], b[0]), _mm256_mul_ps(self[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_max_ps(self[0], b[0]), _mm256_max_ps(self[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn round(self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_round_ps::<8>(self[0]), _mm256_round_ps::<8>(self[1])] }
        }
        #[inline(always)]
        unsafe fn scale(self, n: Self) -> Self {
            // SAFETY: as above.
            unsafe { [half_scale(self[0], n[0]), half_scale(self[1], n[1])] }
        }
        #[inline(always)]
        unsafe fn keep_from(self, x: Self, bound: f32) -> Self {
            // SAFETY: as above.
            unsafe {
                let bound = _mm256_set1_ps(bound);
                [
                    _mm256_and_ps(self[0], _mm256_cmp_ps::<_CMP_GE_OQ>(x[0], bound)),
                    _mm256_and_ps(self[1], _mm256_cmp_ps::<_CMP_GE_OQ>(x[1], bound)),
                ]
            }
        }
    }

    /// Computes `x · 2^n`, building the power from its exponent bits.
    ///
    /// # Safety
    /// The CPU must support `avx2`.
    #[inline(always)]
    unsafe fn half_scale(x: __m256, n: __m256) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }
}
