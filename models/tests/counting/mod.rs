//! A counting allocator, for tests that run alone in their process.
#![allow(unreachable_pub, dead_code, reason = "each test reads one of the counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of bytes ever allocated, and number of bytes not yet freed.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    pub calls: usize,
    pub bytes: usize,
    pub live: usize,
    /// Highest value of `live` since the last [`forget_peak`].
    pub peak: usize,
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Counts so far, in the whole process.
pub fn counted() -> Counted {
    // The freed bytes are read first, because other threads may allocate and free between the two reads.
    let [freed, bytes, calls] = [&FREED, &BYTES, &CALLS].map(|count| count.load(Ordering::Relaxed));
    Counted { calls, bytes, live: bytes - freed, peak: PEAK.load(Ordering::Relaxed) }
}

/// Starts to look for a new peak.
pub fn forget_peak() {
    PEAK.store(0, Ordering::Relaxed);
}

struct Counting;

// SAFETY: every call is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        let bytes = BYTES.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(bytes.saturating_sub(FREED.load(Ordering::Relaxed)), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        FREED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
