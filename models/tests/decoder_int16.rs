//! Cost of activations in 16-bit integers: divergence from f32 on real text, and the same bits in every batch.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;
mod pulled;

use fixture::{decoder_in, step, table, whole};
use waymark_models::checkpoint::Checkpoint;
use waymark_models::tokenizer::Specials;
use waymark_models::{Arithmetic, BLOCK, ForwardBatch, LogitPositions};

/// Real prose in the repository.
const TEXT: &str = include_str!("../../docs/design-notes.md");
/// Number of tokens per sequence.
const LENGTH: usize = 192;

/// Sequences of tokens of [`TEXT`].
fn sequences(count: usize) -> Vec<Vec<u32>> {
    let checkpoint = Checkpoint::open(&pulled::policy()).unwrap();
    let tokens = checkpoint.tokenizer.encode(TEXT, Specials::Literal).unwrap();
    tokens.chunks_exact(LENGTH).take(count).map(<[u32]>::to_vec).collect()
}

/// Log-probabilities of all tokens.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit - most) - sum.ln()).collect()
}

fn likeliest(logits: &[f32]) -> usize {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
}

#[test]
fn divergence_from_f32_is_noise() {
    let [mut exact, mut integer] =
        [Arithmetic::F32, Arithmetic::Int16].map(|arithmetic| decoder_in(&pulled::policy(), arithmetic));
    let (mut sum, mut most, mut agreed, mut count) = (0.0, 0.0f64, 0, 0);
    let mut apart = 0.0f32;
    for tokens in sequences(6) {
        let (exact, integer) = (whole(&mut exact, &tokens, None), whole(&mut integer, &tokens, None));
        for (exact, integer) in exact.iter().zip(&integer) {
            let (p, q) = (log_softmax(exact), log_softmax(integer));
            let divergence: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
            sum += divergence;
            most = most.max(divergence);
            agreed += usize::from(likeliest(exact) == likeliest(integer));
            apart = apart.max(fixture::difference(exact, integer));
            count += 1;
        }
    }
    let mean = sum / f64::from(count);
    println!(
        "int16 against f32 over {count} positions: mean KL {mean:.1e}, largest {most:.1e}, \
         likeliest token equal at {agreed}, largest difference of a logit {apart:.1e}"
    );
    assert!(apart > 0.0, "the integer kernels were not used");
    assert!(mean < 1e-6 && most < 1e-4, "mean {mean}, largest {most}");
    assert!(agreed * 1000 >= count as usize * 998, "{agreed} of {count}");
}

#[test]
fn logits_depend_on_the_sequence_alone() {
    let mut decoder = decoder_in(&pulled::policy(), Arithmetic::Int16);
    let sequences = sequences(5);
    let alone: Vec<_> = sequences.iter().map(|tokens| whole(&mut decoder, &tokens[..60], None)).collect();
    let each = LENGTH.div_ceil(BLOCK);
    let mut kv = decoder.kv_cache(sequences.len() * each);
    let tables: Vec<_> = (0..sequences.len()).map(|index| table((index * each) as u32, LENGTH)).collect();
    // Chunks of different lengths, so that tokens meet tiles of all sizes.
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
