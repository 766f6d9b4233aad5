//! Asking for memory before it is needed, where the processor would not look ahead by itself.

/// Bytes per cache line.
const LINE: usize = 64;

/// Asks for the cache line of `at`; any address will do.
#[inline(always)]
pub(crate) fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64, and a prefetch touches no memory as far as the program can tell.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch(at.cast(), _MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for `bytes` from `at` on.
pub(crate) fn prefetch(at: *const u8, bytes: usize) {
    (0..bytes).step_by(LINE).for_each(|offset| prefetch_line(at.wrapping_add(offset)));
}
