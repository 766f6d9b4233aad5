//! An allocator that counts what is asked of it, for tests that are alone in their process.
#![allow(unreachable_pub, dead_code, reason = "each test reads one of the counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What was ever allocated, and what of it is not freed.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    pub calls: usize,
    pub bytes: usize,
    pub live: usize,
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);

/// So far, in the whole process.
pub fn counted() -> Counted {
    // What is freed first: meanwhile others allocate, and free that again.
    let [freed, bytes, calls] = [&FREED, &BYTES, &CALLS].map(|count| count.load(Ordering::Relaxed));
    Counted { calls, bytes, live: bytes - freed }
}

struct Counting;

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        FREED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
