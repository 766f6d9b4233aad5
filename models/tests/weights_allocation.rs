//! What a file claims to hold is compared before memory is taken for it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod synthetic;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use waymark_models::tokenizer::Tokenizer;
use waymark_models::weights::Gguf;

struct Counting;

/// Bytes that were ever allocated.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(layout.size(), Ordering::Relaxed);
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
fn a_million_types_of_three_tokens_take_no_memory() {
    // One test: allocations are counted for the whole process.
    const TYPES: usize = 1 << 20;
    let list = |texts: &[&str]| Value::Array(texts.iter().map(|&text| Value::String(text.to_owned())).collect());
    let metadata = [
        ("model", Value::String("gpt2".to_owned())),
        ("pre", Value::String("smollm".to_owned())),
        ("tokens", list(&["a", "b", "ab"])),
        ("merges", list(&["a b"])),
        ("token_type", Value::Array(vec![Value::U8(1); TYPES])),
    ];
    let metadata = metadata.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).to_vec();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    synthetic::write_gguf(&path, "llama", GgmlDType::F32, metadata);
    let gguf = Gguf::open(&path).unwrap();
    let before = TAKEN.load(Ordering::Relaxed);
    let error = Tokenizer::from_gguf(&gguf).unwrap_err().to_string();
    let taken = TAKEN.load(Ordering::Relaxed) - before;
    assert!(error.contains("3 tokens but 1048576 token types"), "{error}");
    // Eight bytes for each would be this much; the pipeline before it takes some.
    assert!(taken < 8 * TYPES, "{taken} bytes");
}
