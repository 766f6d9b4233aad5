//! Cost of activations in 16-bit integers: divergence from f32 on real text, and the same bits in every batch.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod divergence;
mod fixture;
mod pulled;

use std::path::{Path, PathBuf};

use divergence::{Divergence, sequences};
use fixture::{decoder_in, step, table, whole};
use waymark_models::{Arithmetic, BLOCK, ForwardBatch, LogitPositions};

/// Number of tokens per sequence.
const LENGTH: usize = 192;

/// Divergence of int16 from f32 over six sequences.
fn divergence_of(weights: &Path) -> Divergence {
    let [mut exact, mut integer] =
        [Arithmetic::F32, Arithmetic::Int16].map(|arithmetic| decoder_in(weights, arithmetic));
    let mut divergence = Divergence::default();
    for tokens in sequences(weights, LENGTH, 6) {
        divergence.add(&whole(&mut exact, &tokens, None), &whole(&mut integer, &tokens, None));
    }
    println!("int16 against f32: {divergence}");
    divergence
}

#[test]
fn divergence_from_f32_is_noise() {
    let divergence = divergence_of(&pulled::policy());
    assert!(divergence.apart > 0.0, "the integer kernels were not used");
    assert!(divergence.mean() < 1e-6 && divergence.largest < 1e-4, "{divergence}");
    assert!(divergence.agreement() >= 0.998, "{divergence}");
}

/// Bounds that catch faults; K-quants have more than one scale inside a sum.
#[test]
#[ignore = "needs a model with K-quants: set WAYMARK_TEST_GGUF to its file"]
fn divergence_of_k_quants_is_noise() {
    let divergence = divergence_of(&PathBuf::from(std::env::var_os("WAYMARK_TEST_GGUF").unwrap()));
    assert!(divergence.apart > 0.0, "the integer kernels were not used");
    assert!(divergence.mean() < 1e-4 && divergence.agreement() >= 0.99, "{divergence}");
}

#[test]
fn logits_depend_on_the_sequence_alone() {
    let mut decoder = decoder_in(&pulled::policy(), Arithmetic::Int16);
    let sequences = sequences(&pulled::policy(), LENGTH, 5);
    let alone: Vec<_> = sequences.iter().map(|tokens| whole(&mut decoder, &tokens[..60], None)).collect();
    let each = LENGTH.div_ceil(BLOCK);
    let mut kv = decoder.kv_cache(sequences.len() * each);
    let tables: Vec<_> = (0..sequences.len()).map(|index| table((index * each) as u32, LENGTH)).collect();
    // Chunks of different lengths, so tokens meet tiles of all sizes.
    for (start, end) in [(0, 37), (37, 38), (38, 59), (59, 60)] {
        let mut batch = ForwardBatch::new();
        for (tokens, table) in sequences.iter().zip(&tables) {
            batch.push(&tokens[start..end], start, table, None, LogitPositions::Last);
        }
        for (found, alone) in step(&mut decoder, &batch, &mut kv).iter().zip(&alone) {
            assert_eq!(*found, alone[end - 1], "tokens {start} to {end}");
        }
    }
}
