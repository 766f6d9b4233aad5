//! A step like the one before takes no memory from the system.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use fixture::{decoder_in, path, table};
use waymark_models::{Arithmetic, ForwardBatch, Logits, Want};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn warm_steps_do_not_allocate() {
    // One test: allocations are counted for the whole process.
    [Arithmetic::F32, Arithmetic::Bf16].into_iter().for_each(measure);
}

fn measure(arithmetic: Arithmetic) {
    let mut decoder = decoder_in(&path("qwen3"), arithmetic);
    let slot = decoder.load_adapter(&path("qwen3-adapters/full")).unwrap();
    let mut kv = decoder.kv_cache(128);
    let mut logits = Logits::new();
    let mut batch = ForwardBatch::new();
    let tables: Vec<Vec<u32>> = (0..16).map(|row| table(row * 8, 128)).collect();
    let prompt: Vec<u32> = (0..40).collect();
    let mut counts = Vec::new();
    for round in 0..3 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for position in (0..120).step_by(40) {
            batch.clear();
            for (row, table) in tables.iter().enumerate() {
                // Decoding rows and prefill chunks, with and without an adapter.
                let tokens = if row % 3 == 0 { &prompt[..] } else { &prompt[..1] };
                batch.push(tokens, position, table, (row % 2 == 0).then_some(slot), Want::Last);
            }
            decoder.forward(&batch, &mut kv, &mut logits).unwrap();
        }
        counts.push(ALLOCATIONS.load(Ordering::Relaxed) - before);
        assert!(round == 0 || counts[round] == 0, "allocations per round in {arithmetic}: {counts:?}");
    }
}
