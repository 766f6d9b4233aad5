//! Sizes claimed by a file are checked before memory is allocated for them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod counting;
mod synthetic;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use counting::counted;
use waymark_models::tokenizer::Tokenizer;
use waymark_models::weights::Gguf;

#[test]
fn a_million_types_of_three_tokens_take_no_memory() {
    // A single test, because allocations are counted for the whole process.
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
    let before = counted().bytes;
    let error = Tokenizer::from_gguf(&gguf).unwrap_err().to_string();
    let taken = counted().bytes - before;
    assert!(error.contains("3 tokens but 1048576 token types"), "{error}");
    // Eight bytes for each type would exceed the bound; the steps before allocate a part of it.
    assert!(taken < 8 * TYPES, "{taken} bytes");
}
