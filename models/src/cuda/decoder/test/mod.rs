//! Decoding on the kernel emulator compared with the CPU decoder.
#![allow(clippy::unwrap_used)]

mod adjusted;
mod fp8;
mod gguf;
mod pair;
mod profile;
mod replaced;
mod tuning;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::batch::LogitPositions;
use crate::cuda::decoder::adapter_bytes;
use crate::cuda::toy::{self, distance, llama, qwen2, qwen3};
use crate::gradient::{Learner, Lora, Module, Tune};
use crate::kernel::Team;
use crate::sampler::{Pick, Sampled};
use crate::weights::Weights;
use pair::{DecoderPair, StepOutcome};

/// Bound on the relative error ‖found − wanted‖ / ‖wanted‖ of a row of logits from rounding activations and KV cache to
/// `bf16`.
const BF16: f64 = 2e-2;

/// Compares every row of logits with the CPU, up to rounding.
fn judge(name: &str, outcome: &StepOutcome) {
    judge_within(0.0..BF16, name, outcome);
}

/// Compares every row of logits with the CPU, by the range of its relative error.
fn judge_within(bounds: Range<f64>, name: &str, outcome: &StepOutcome) {
    assert_eq!(outcome.found.len(), outcome.wanted.len());
    let off: Vec<f64> = outcome.found.iter().zip(&outcome.wanted).map(|(a, b)| distance(a, b)).collect();
    println!("{name}: {} rows, off by up to {:.1e}", off.len(), off.iter().copied().fold(0.0, f64::max));
    assert!(off.iter().all(|off| bounds.contains(off)), "{name}: off by {off:?}");
}

/// Returns the id of the highest logit, the lowest on ties, with its log-probability.
fn best(logits: &[f32]) -> (u32, f32) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let id = logits.iter().position(|logit| *logit == most).unwrap();
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    (id as u32, -sum.ln() as f32)
}

/// Runs three chunks in one step, then decodes the same rows; for every other row the emulator samples the token.
fn serve(name: &str, weights: &Weights, seed: u64) {
    let Some(mut pair) = DecoderPair::new(weights, seed) else { return };
    let rows = [1, 2, 3].map(|salt| pair.begin(salt, None));
    let batch = pair.batch(&[
        (rows[0], 40, LogitPositions::All),
        (rows[1], 1, LogitPositions::Last),
        (rows[2], 17, LogitPositions::Last),
    ]);
    let outcome = pair.step(&batch, &[]);
    let step = outcome.step;
    assert_eq!((step.tokens, step.single_token_rows, step.logits, step.decode), (58, 1, 42, false));
    judge(&format!("{name}, chunks"), &outcome);
    for round in 0..3 {
        let batch = pair.batch(&rows.map(|row| (row, 1, LogitPositions::Last)));
        let picks = [0, 1, 2].map(|row| ((row + round) % 2 == 0).then_some(Pick::GREEDY));
        let outcome = pair.step(&batch, &picks);
        let step = outcome.step;
        assert_eq!((step.tokens, step.single_token_rows, step.logits, step.decode), (4, 4, 4, true), "padded to four");
        judge(&format!("{name}, decoding"), &outcome);
        for ((pick, sampled), logits) in picks.iter().zip(&outcome.sampled).zip(&outcome.found) {
            assert_eq!(pick.is_some(), sampled.is_some());
            let Some(sampled) = sampled else { continue };
            let Sampled { id, logprob, .. } = sampled.as_ref().unwrap();
            let (wanted, certain) = best(logits);
            assert_eq!(*id, wanted, "{name}: the highest logit's");
            assert!((logprob - certain).abs() < 1e-4, "{name}: {logprob} instead of {certain}");
        }
    }
    pair.untouched();
}

#[test]
fn a_llama_is_served_as_on_the_processor() {
    serve("llama", &toy::open(&llama()), 1);
}

#[test]
fn biases_and_a_head_of_its_own_are_served() {
    serve("qwen2", &toy::open(&qwen2()), 2);
}

#[test]
fn norms_per_head_are_served() {
    serve("qwen3", &toy::open(&qwen3()), 3);
}

#[test]
fn a_gguf_is_unpacked_and_its_rows_put_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.gguf");
    gguf::write(&toy::open(&llama()), &path);
    let weights = Weights::open(&path).unwrap();
    assert_eq!(weights.config(), &llama());
    serve("gguf", &weights, 4);
}

#[test]
fn a_long_context_is_computed_in_chunks_and_looked_at_in_parts() {
    let Some(mut pair) = DecoderPair::new(&toy::open(&qwen3()), 5) else { return };
    let long = pair.begin(1, None);
    let short = pair.begin(2, None);
    let batch = pair.batch(&[(long, 100, LogitPositions::Nothing)]);
    let outcome = pair.step(&batch, &[]);
    assert_eq!((outcome.step.logits, outcome.step.tiles), (0, 2));
    // A second chunk of a sequence, and a row with one token that wants no logits.
    let batch = pair.batch(&[(long, 70, LogitPositions::Last), (short, 1, LogitPositions::Nothing)]);
    judge("the second chunk", &pair.step(&batch, &[]));
    for _ in 0..2 {
        // 171 tokens are split into two parts.
        let batch = pair.batch(&[(short, 1, LogitPositions::Last), (long, 1, LogitPositions::Last)]);
        judge("two parts", &pair.step(&batch, &[]));
    }
    pair.untouched();
}

#[test]
fn a_copied_block_continues_as_the_original_does() {
    let Some(mut pair) = DecoderPair::new(&toy::open(&qwen3()), 6) else { return };
    let first = pair.begin(1, None);
    let batch = pair.batch(&[(first, 40, LogitPositions::Last)]);
    judge("the prompt", &pair.step(&batch, &[]));
    let fork = pair.fork(first);
    for _ in 0..3 {
        let batch = pair.batch(&[(first, 1, LogitPositions::Last), (fork, 1, LogitPositions::Last)]);
        let outcome = pair.step(&batch, &[]);
        judge("both", &outcome);
        assert_eq!(outcome.found[0], outcome.found[1]);
    }
    assert!(pair.copy_refusal().contains("not in the pool"));
    pair.untouched();
}

/// Saves an adapter that is nowhere zero.
fn save(weights: &Weights, rank: usize, targets: &[Module], dir: &Path) {
    let tune = Tune::Lora(Lora { rank, alpha: 2.0 * rank as f32, targets: targets.to_vec(), seed: 5 });
    let mut learner = Learner::load(weights, Arc::new(Team::new(2)), &tune).unwrap();
    let values: Vec<f32> = (0..learner.values().len()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 400.0).collect();
    learner.set_values(&values).unwrap();
    learner.save_adapter(dir, "toy").unwrap();
}

/// Mixes rows of two adapters and of none in one step, in chunks and decoding, then loads another adapter into a freed
/// slot.
fn adapt(name: &str, weights: &Weights, seed: u64) {
    let Some(mut pair) = DecoderPair::new(weights, seed) else { return };
    let folder = tempfile::tempdir().unwrap();
    let all = folder.path().join("all");
    let some = folder.path().join("some");
    save(weights, 3, &Module::ALL, &all);
    save(weights, 20, &[Module::QProj, Module::VProj, Module::DownProj], &some);
    let slots = [&all, &some].map(|dir| pair.load_adapter(dir));
    let rows = [(1, Some(slots[0])), (2, None), (2, Some(slots[1])), (1, None)];
    let [first, base, second, plain] = rows.map(|(salt, adapter)| pair.begin(salt, adapter));
    let last = |count: usize, row: usize| (row, count, LogitPositions::Last);
    let batch = pair.batch(&[last(20, first), last(9, base), last(1, second), last(20, plain)]);
    let outcome = pair.step(&batch, &[]);
    assert_eq!(outcome.step.lora, 3, "tiles of sixteen tokens");
    judge(&format!("{name}, chunks with adapters"), &outcome);
    let far = distance(&outcome.wanted[0], &outcome.wanted[3]);
    assert!(far > 5.0 * BF16, "{name}: the adapter is to be seen, {far}");
    let batch = pair.batch(&[last(1, first), last(1, base), last(1, second)]);
    let outcome = pair.step(&batch, &[]);
    assert_eq!((outcome.step.single_token_rows, outcome.step.lora), (4, 2));
    judge(&format!("{name}, decoding with adapters"), &outcome);
    pair.unload_adapter(slots[0]);
    let batch = pair.batch(&[last(1, first)]);
    assert!(pair.refusal(&batch).contains("no adapter in slot 0"));
    assert_eq!(pair.load_adapter(&some), slots[0]);
    let again = pair.begin(4, Some(slots[0]));
    let batch = pair.batch(&[last(5, again), last(1, second)]);
    judge(&format!("{name}, an adapter after another"), &pair.step(&batch, &[]));
    pair.untouched();
}

#[test]
fn adapters_and_none_share_a_step() {
    adapt("llama", &toy::open(&llama()), 6);
    adapt("qwen2", &toy::open(&qwen2()), 7);
}

#[test]
fn a_decoder_takes_what_was_planned_and_an_adapter_what_was_said_of_it() {
    let weights = toy::open(&qwen2());
    let Some(mut pair) = DecoderPair::new(&weights, 9) else { return };
    let all = pair.held();
    assert_eq!(all, pair.planned());
    let folder = tempfile::tempdir().unwrap();
    let some = [Module::QProj, Module::VProj, Module::DownProj];
    for (rank, targets) in [(3, &Module::ALL[..]), (20, &some[..])] {
        let dir = folder.path().join(rank.to_string());
        save(&weights, rank, targets, &dir);
        let slot = pair.load_adapter(&dir);
        let lora = Lora { rank, alpha: 1.0, targets: targets.to_vec(), seed: 5 };
        assert_eq!(pair.held() - all, adapter_bytes(&qwen2(), &lora));
        pair.unload_adapter(slot);
        assert_eq!(pair.held(), all);
    }
}
