//! Learner with frozen weights in bf16, compared with the learner in `f32`.
#![allow(clippy::unwrap_used)]

mod fixture;
mod pulled;

use std::sync::Arc;

use fixture::{Tensors, path};
use waymark_models::Arithmetic;
use waymark_models::gradient::{Learner, Lora, Module, Pack, Score, ScoredModel, Slope, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

fn lora() -> Tune {
    Tune::Lora(Lora { rank: 3, alpha: 6.0, targets: Module::ALL.to_vec(), seed: 5 })
}

/// Creates a learner whose adapter has no zero values.
fn learner(name: &str, arithmetic: Arithmetic, threads: usize) -> Learner {
    let weights = Weights::open(&path(name)).unwrap();
    let mut learner = Learner::load_with(&weights, Arc::new(Team::new(threads)), &lora(), arithmetic).unwrap();
    let values: Vec<f32> = (0..learner.values().len()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 400.0).collect();
    learner.set_values(&values).unwrap();
    learner
}

/// Two answers to one prompt, and a separate sequence.
fn pack() -> Pack {
    let tokens = |count: usize, seed: usize| -> Vec<u32> {
        (0..count).map(|i| ((i * i * 31 + i * 7 + seed * 101) % 256) as u32).collect()
    };
    let mut pack = Pack::new();
    let prompt = pack.push(&tokens(21, 1), None);
    let answers = [pack.push(&tokens(18, 2), Some(prompt)), pack.push(&tokens(30, 3), Some(prompt))];
    let alone = pack.push(&tokens(35, 4), None);
    answers.into_iter().for_each(|answer| (0..18).for_each(|index| pack.target(answer, index)));
    (5..35).for_each(|index| pack.target(alone, index));
    pack
}

/// Mean loss of the targets, and its gradient.
fn step(learner: &mut Learner, pack: &Pack) -> (f64, Vec<f32>) {
    let mut loss = 0.0;
    let count = pack.targets().len() as f64;
    learner.zero();
    let mut slope = |_: usize, score: Score| {
        loss -= f64::from(score.logprob) / count;
        Slope { logprob: (-1.0 / count) as f32, entropy: 0.0 }
    };
    learner.learn(pack, &mut slope).unwrap();
    (loss, learner.gradients().to_vec())
}

/// Losses of a few gradient descent steps of equal length.
fn descend(learner: &mut Learner, pack: &Pack, steps: usize, length: f64) -> Vec<f64> {
    let mut down = || {
        let (loss, gradient) = step(learner, pack);
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let rate = (length / norm) as f32;
        learner.change(|values, gradients| {
            values.iter_mut().zip(gradients).for_each(|(value, gradient)| *value -= rate * *gradient);
        });
        loss
    };
    (0..steps).map(|_| down()).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn losses_and_gradients_are_close_to_those_in_f32() {
    let pack = pack();
    for name in ["llama", "qwen2", "qwen3"] {
        let mut exact = learner(name, Arithmetic::F32, 2);
        let mut rounded = learner(name, Arithmetic::Bf16, 2);
        let expected = step(&mut exact, &pack);
        let found = step(&mut rounded, &pack);
        assert!((found.0 - expected.0).abs() < 5e-3 * expected.0, "{name}: loss {} for {}", found.0, expected.0);
        assert_ne!(found.1, expected.1, "{name}: nothing was rounded");
        for parameter in exact.parameters() {
            let [expected, found] = [&expected.1, &found.1].map(|all| &all[parameter.range.clone()]);
            let cosine = cosine(expected, found);
            assert!(cosine > 0.999, "{name}, {}: cosine {cosine}", parameter.name);
        }
    }
}

#[test]
fn steps_lower_the_loss_as_in_f32() {
    let pack = pack();
    let run = |arithmetic| descend(&mut learner("llama", arithmetic, 2), &pack, 10, 0.1);
    let exact = run(Arithmetic::F32);
    let rounded = run(Arithmetic::Bf16);
    assert!(exact[9] < 0.9 * exact[0], "{exact:?}");
    for (exact, rounded) in exact.iter().zip(&rounded) {
        assert!((exact - rounded).abs() < 0.01 * exact, "{exact} in f32, {rounded} in bf16");
    }
}

#[test]
fn nothing_depends_on_threads_or_on_what_is_computed_again() {
    let pack = pack();
    let mut one = learner("llama", Arithmetic::Bf16, 1);
    let expected = step(&mut one, &pack);
    let scores = one.score(&pack, ScoredModel::Adapted).unwrap();
    for threads in [2, 3] {
        let mut other = learner("llama", Arithmetic::Bf16, threads);
        assert_eq!(step(&mut other, &pack), expected);
        other.set_limit(Some(0));
        let least = other.bytes_of(&pack);
        other.set_limit(Some(least));
        assert_eq!(step(&mut other, &pack), expected);
        assert_eq!(other.score(&pack, ScoredModel::Adapted).unwrap(), scores);
    }
}

#[test]
fn weights_that_are_learned_are_never_rounded() {
    let weights = Weights::open(&path("llama")).unwrap();
    let error = Learner::load_with(&weights, Arc::new(Team::new(1)), &Tune::Full, Arithmetic::Bf16).unwrap_err();
    assert!(error.to_string().contains("all weights are trained in f32"), "{error}");
}

#[test]
fn neither_arithmetic_keeps_a_copy_of_frozen_weights() {
    let weights = Weights::open(&path("llama")).unwrap();
    let file = std::fs::metadata(path("llama").join("model.safetensors")).unwrap().len() as usize;
    let tune = Tune::Lora(Lora { rank: 1, alpha: 1.0, targets: vec![Module::QProj], seed: 5 });
    for arithmetic in [Arithmetic::F32, Arithmetic::Bf16] {
        let learner = Learner::load_with(&weights, Arc::new(Team::new(1)), &tune, arithmetic).unwrap();
        // Besides the weights, padded to panels, this is a small adapter.
        let bytes = learner.bytes_of(&Pack::new());
        assert!(bytes < file + file / 2, "{arithmetic}: {bytes} bytes, {file} in the file");
    }
}

/// On real weights, log-probabilities stay close and steps lower the loss alike. The bounds catch faults; the
/// figures are printed.
#[test]
fn smollm2_learns_alike() {
    let Some(file) = pulled::policy_if_reachable() else { return };
    let weights = Weights::open(&file).unwrap();
    let cases = Tensors::read(&path("smollm2.safetensors"));
    let mut pack = Pack::new();
    for case in 0..cases.cases() {
        let read = |part: &str| cases.integers(&format!("{case}.{part}"));
        let tokens = [read("tokens"), read("greedy")].concat();
        let segment = pack.push(&tokens, None);
        (1..tokens.len()).for_each(|index| pack.target(segment, index));
    }
    let tune = Tune::Lora(Lora { rank: 8, alpha: 16.0, targets: Module::ALL.to_vec(), seed: 5 });
    let run = |arithmetic| {
        let mut learner = Learner::load_with(&weights, Arc::new(Team::new(2)), &tune, arithmetic).unwrap();
        let scores = learner.score(&pack, ScoredModel::Adapted).unwrap();
        (scores, descend(&mut learner, &pack, 5, 0.2))
    };
    let exact = run(Arithmetic::F32);
    let rounded = run(Arithmetic::Bf16);
    assert_ne!(exact.0, rounded.0, "nothing was rounded");
    let apart = exact.0.iter().zip(&rounded.0).map(|(a, b)| f64::from((a.logprob - b.logprob).abs()));
    let (sum, most) = apart.fold((0.0, 0.0f64), |(sum, most), apart| (sum + apart, most.max(apart)));
    let mean = sum / exact.0.len() as f64;
    println!("smollm2, {} targets: log-probabilities {mean:.1e} apart in the mean, {most:.1e} at most", exact.0.len());
    println!("losses in f32 {:.4?}, in bf16 {:.4?}", exact.1, rounded.1);
    assert!(mean < 0.05, "{mean}");
    assert!(exact.1[4] < exact.1[0] && rounded.1[4] < rounded.1[0]);
    for (exact, rounded) in exact.1.iter().zip(&rounded.1) {
        assert!((exact - rounded).abs() < 0.03 * exact, "{exact} in f32, {rounded} in bf16");
    }
}
