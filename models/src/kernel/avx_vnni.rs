//! Lanes of AVX-VNNI: those of AVX2, with dot products of pairs in one instruction instead of two. For CPUs without
//! AVX-512, such as those of laptops.

use std::arch::asm;
use std::arch::x86_64::__m256i;

use super::int_lanes::IntLanes;
use super::same_lanes::delegate_lanes;

/// Lanes of AVX2.
type Avx2 = [__m256i; 2];

/// AVX-VNNI implementation; needs `avx2`, `fma`, `f16c` and `avxvnni`.
#[derive(Clone, Copy)]
pub(super) struct AvxVnni(Avx2);

/// Computes `_mm256_dpwssd_avx_epi32`, which LLVM would replace by two instructions, as in the lanes of AVX-512.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn dot(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    let mut sum = sum;
    // SAFETY: the instruction only reads and writes the named registers.
    unsafe {
        asm!(
            "{{vex}} vpdpwssd {0}, {1}, {2}",
            inout(ymm_reg) sum, in(ymm_reg) a, in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

impl IntLanes for AvxVnni {
    delegate_lanes!(always, Avx2);

    #[inline(always)]
    unsafe fn dot(self, x: Self, sum: Self) -> Self {
        // SAFETY: the trait's requirements on the caller.
        unsafe { Self([dot(sum.0[0], self.0[0], x.0[0]), dot(sum.0[1], self.0[1], x.0[1])]) }
    }
}
