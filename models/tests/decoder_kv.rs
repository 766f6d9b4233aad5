//! Cost of a KV cache in fewer than 32 bits: divergence from one in f32 on real text, and memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod divergence;
mod fixture;
mod pulled;

use std::path::{Path, PathBuf};

use divergence::{Divergence, sequences};
use fixture::{decoder, decoder_in, path, step, table};
use waymark_models::decoder::KvKind;
use waymark_models::weights::Weights;
use waymark_models::{Arithmetic, BLOCK, ForwardBatch, LogitPositions};

/// Number of tokens per sequence.
const LENGTH: usize = 1024;
/// Number of tokens per step.
const CHUNK: usize = 128;

/// Divergences of caches in f16 and in int8 from one in f32, over `count` sequences.
fn divergences(weights: &Path, arithmetic: Arithmetic, count: usize) -> [Divergence; 2] {
    let mut decoder = decoder_in(weights, arithmetic);
    let kinds = [KvKind::F16, KvKind::Int8];
    let mut divergences = [Divergence::default(), Divergence::default()];
    let blocks = table(0, LENGTH);
    for tokens in sequences(weights, LENGTH, count) {
        let mut exact_kv = decoder.kv_cache_of(KvKind::F32, blocks.len());
        let mut caches = kinds.map(|kind| decoder.kv_cache_of(kind, blocks.len()));
        for (number, chunk) in tokens.chunks_exact(CHUNK).enumerate() {
            let mut batch = ForwardBatch::new();
            batch.push(chunk, number * CHUNK, &blocks, None, LogitPositions::All);
            let exact = step(&mut decoder, &batch, &mut exact_kv);
            for (kv, divergence) in caches.iter_mut().zip(&mut divergences) {
                divergence.add(&exact, &step(&mut decoder, &batch, kv));
            }
        }
    }
    for (kind, divergence) in kinds.iter().zip(&divergences) {
        println!("KV cache in {kind} against f32, weights in {arithmetic}: {divergence}");
    }
    divergences
}

/// Bounds that catch faults, a few times what was measured.
#[test]
fn divergence_from_a_cache_in_f32_is_small() {
    let [half, bytes] = divergences(&pulled::policy(), Arithmetic::F32, 2);
    assert!(half.apart > 0.0 && bytes.apart > half.apart, "the caches were not rounded");
    assert!(half.mean() < 1e-6 && half.agreement() >= 0.998, "{half}");
    assert!(bytes.mean() < 5e-4 && bytes.agreement() >= 0.985, "{bytes}");
}

#[test]
#[ignore = "a measurement: set WAYMARK_TEST_GGUF to the file of a model"]
fn divergence_of_another_model() {
    let path = PathBuf::from(std::env::var_os("WAYMARK_TEST_GGUF").unwrap());
    let arithmetic = Arithmetic::suited_to(&Weights::open(&path).unwrap());
    let [half, bytes] = divergences(&path, arithmetic, 1);
    assert!(half.apart > 0.0 && bytes.apart > half.apart, "the caches were not rounded");
}

#[test]
fn a_token_takes_the_memory_that_is_announced() {
    for name in ["llama", "qwen3"] {
        let mut decoder = decoder(&path(name));
        let config = decoder.config();
        let values = 2 * config.layers * config.kv_width();
        let scales = 2 * config.layers * config.kv_heads;
        let expected = [(KvKind::F32, 4 * values), (KvKind::F16, 2 * values), (KvKind::Int8, values + 2 * scales)];
        for (kind, bytes) in expected {
            assert_eq!(decoder.kv_bytes_per_token_of(kind), bytes, "{name}, {kind}");
            let mut kv = decoder.kv_cache_of(kind, 8);
            let mut batch = ForwardBatch::new();
            batch.push(&[1; 2 * BLOCK + 1], 0, &[7, 2, 3], None, LogitPositions::Last);
            step(&mut decoder, &batch, &mut kv);
            assert_eq!(kv.bytes(), 3 * BLOCK * bytes, "{name}, {kind}");
            kv.reserve();
            assert_eq!(kv.bytes(), 8 * BLOCK * bytes, "{name}, {kind}");
        }
    }
}
