//! Prefetching of memory that the hardware prefetcher would not reach.

/// Number of bytes per cache line.
const LINE: usize = 64;

/// Prefetches the cache line of `at`; any address is allowed.
#[inline(always)]
pub(crate) fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64 CPU, and a prefetch accesses no memory as far as the program can observe.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch(at.cast(), _MM_HINT_T0);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: part of every AArch64 CPU; a hint that accesses no memory as far as the program can observe, and does not
    // fault. The intrinsic is not stable.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) at, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches `bytes` bytes from `at` on.
pub(crate) fn prefetch(at: *const u8, bytes: usize) {
    (0..bytes).step_by(LINE).for_each(|offset| prefetch_line(at.wrapping_add(offset)));
}
