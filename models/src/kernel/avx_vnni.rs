//! Lanes of AVX-VNNI: those of AVX2, with dot products of pairs in one instruction instead of two. For CPUs without
//! AVX-512, such as those of laptops.

use std::arch::asm;
use std::arch::x86_64::{__m256, __m256i};

use super::int_lanes::IntLanes;

/// Lanes of AVX2.
type Avx2 = [__m256i; 2];

/// AVX-VNNI implementation; needs `avx2`, `fma`, `f16c` and `avxvnni`.
#[derive(Clone, Copy)]
pub(super) struct AvxVnni(Avx2);

/// Computes `_mm256_dpwssd_avx_epi32`, which LLVM would take apart again, as in the lanes of AVX-512.
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

/// Defines methods of which AVX2 has the same.
macro_rules! same {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[inline(always)]
        unsafe fn $name($($argument: $kind),*) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe { Self(Avx2::$name($($argument),*)) }
        }
    )*};
}

/// Defines operations of two operands of which AVX2 has the same.
macro_rules! same_operations {
    ($($name:ident)*) => {$(
        #[inline(always)]
        unsafe fn $name(self, b: Self) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe { Self(self.0.$name(b.0)) }
        }
    )*};
}

impl IntLanes for AvxVnni {
    type Floats = [__m256; 2];

    same! {
        splat(word: u32);
        load(from: *const u32);
        pair_bytes(first: *const i8, second: *const i8);
        pair_bits(first: u16, second: u16);
        signed_bytes(from: *const i8);
        unsigned_bytes(from: *const u8);
    }

    same_operations! { and or sub_pairs mul_pairs add mul }

    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: in all methods of this implementation, the trait's requirements on the caller.
        unsafe { self.0.store(to) }
    }
    #[inline(always)]
    unsafe fn right(self, count: u32) -> Self {
        // SAFETY: as above.
        unsafe { Self(self.0.right(count)) }
    }
    #[inline(always)]
    unsafe fn left(self, count: u32) -> Self {
        // SAFETY: as above.
        unsafe { Self(self.0.left(count)) }
    }
    #[inline(always)]
    unsafe fn look_up(self, table: &[i8; 16]) -> Self {
        // SAFETY: as above.
        unsafe { Self(self.0.look_up(table)) }
    }
    #[inline(always)]
    unsafe fn dot(self, x: Self, sum: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self([dot(sum.0[0], self.0[0], x.0[0]), dot(sum.0[1], self.0[1], x.0[1])]) }
    }
    #[inline(always)]
    unsafe fn floats(self) -> Self::Floats {
        // SAFETY: as above.
        unsafe { self.0.floats() }
    }
}
