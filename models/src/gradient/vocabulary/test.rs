#![allow(clippy::unwrap_used)]

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::gradient::DistillationTerm;

/// An objective with fixed slopes and a distillation term for two of every three targets.
struct Drawn<'a> {
    case: &'a Case,
    towards: Vec<Likeliest>,
    apart: Vec<(usize, f64)>,
}

impl<'a> Drawn<'a> {
    /// Creates terms of up to nine tokens each with random distributions.
    fn new(case: &'a Case) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(8);
        let mut logits = || -> Vec<f32> { (0..case.vocabulary).map(|_| random.random_range(-2.0..2.0)).collect() };
        let towards = (0..case.ids.len()).map(|target| Likeliest::of(&logits(), 1 + target % 9)).collect();
        Self { case, towards, apart: Vec::new() }
    }

    fn weight(target: usize) -> f32 {
        0.25 + 0.5 * (target % 4) as f32
    }

    /// Tokens with their distillation and model log-probabilities. Empty for a target without a term.
    fn pairs(&self, target: usize, logs: &[f64]) -> Vec<(usize, f64, f64)> {
        let Some(DistillationTerm { towards, .. }) = self.distillation(target) else { return Vec::new() };
        let total: f64 = towards.ids().iter().map(|&id| logs[id as usize].exp()).sum();
        let pair = |(&id, &p): (&u32, &f32)| (id as usize, f64::from(p), logs[id as usize].exp() / total);
        towards.ids().iter().zip(towards.probabilities()).map(pair).collect()
    }

    /// Divergence of a target by the definition.
    fn divergence(&self, target: usize, logs: &[f64]) -> f64 {
        self.pairs(target, logs).into_iter().map(|(_, p, q)| p * (p / q).ln()).sum()
    }
}

impl Objective for Drawn<'_> {
    fn slope(&mut self, target: usize, _: Score) -> Slope {
        self.case.slopes[target]
    }

    fn distillation(&self, target: usize) -> Option<DistillationTerm<'_>> {
        let weight = Self::weight(target);
        (target % 3 != 1).then(|| DistillationTerm { towards: &self.towards[target], weight })
    }

    fn report_divergence(&mut self, target: usize, nats: f64) {
        self.apart.push((target, nats));
    }
}

struct Case {
    vocabulary: usize,
    width: usize,
    weights: Vec<f32>,
    hidden: Vec<f32>,
    ids: Vec<u32>,
    slopes: Vec<Slope>,
}

impl Case {
    fn new(vocabulary: usize, width: usize, targets: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64((vocabulary + width + targets) as u64);
        let mut values = |count: usize| -> Vec<f32> { (0..count).map(|_| random.random_range(-1.0..1.0)).collect() };
        let weights = values(vocabulary * width);
        let hidden = values(targets * width);
        let slopes =
            values(2 * targets).chunks_exact(2).map(|two| Slope { logprob: two[0], entropy: two[1] }).collect();
        let ids = (0..targets).map(|_| random.random_range(0..vocabulary as u32)).collect();
        Self { vocabulary, width, weights, hidden, ids, slopes }
    }

    /// Log-distribution of target `target` by the definition.
    fn logs(&self, target: usize, hidden: &[f64], weights: &[f64]) -> Vec<f64> {
        let state = &hidden[target * self.width..][..self.width];
        let logit = |row: &[f64]| row.iter().zip(state).map(|(a, b)| a * b).sum::<f64>();
        let logits: Vec<f64> = weights.chunks_exact(self.width).map(logit).collect();
        let normalizer = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        logits.into_iter().map(|logit| logit - normalizer).collect()
    }

    /// Log-probability and entropy of a target.
    fn score(&self, target: usize, hidden: &[f64], weights: &[f64]) -> [f64; 2] {
        let logs = self.logs(target, hidden, weights);
        [logs[self.ids[target] as usize], -logs.iter().map(|log| log * log.exp()).sum::<f64>()]
    }

    fn loss(&self, hidden: &[f64], weights: &[f64]) -> f64 {
        let terms = self.slopes.iter().enumerate().map(|(target, slope)| {
            let [logprob, entropy] = self.score(target, hidden, weights);
            f64::from(slope.logprob) * logprob + f64::from(slope.entropy) * entropy
        });
        terms.sum()
    }

    /// Scores, ∂loss/∂hidden and ∂loss/∂weights.
    fn run(&self, isa: Isa, threads: usize) -> (Vec<Score>, Vec<f32>, Vec<f32>) {
        let mut scores = Vec::new();
        let mut objective = |target: usize, score: Score| {
            assert_eq!(target, scores.len());
            scores.push(score);
            self.slopes[target]
        };
        let (dhidden, grad) = self.learn(isa, threads, &mut objective);
        (scores, dhidden, grad)
    }

    /// ∂loss/∂hidden and ∂loss/∂weights.
    fn learn(&self, isa: Isa, threads: usize, objective: &mut dyn Objective) -> (Vec<f32>, Vec<f32>) {
        let team = Team::new(threads);
        let packed = Packed::from_f32(&self.weights, self.vocabulary, self.width);
        let head = VocabularyHead { weights: &packed, rounded: false, cap: None };
        let mut dhidden = vec![f32::NAN; self.hidden.len()];
        let mut grad = vec![0.0; self.weights.len()];
        learn_with(isa, &team, head, &self.hidden, &self.ids, objective, &mut dhidden, Some(&mut grad));
        (dhidden, grad)
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

#[test]
fn scores_and_gradients_agree_with_the_definition() {
    for (vocabulary, width, targets) in [(5, 3, 1), (16, 16, 4), (1000, 20, 7), (403, 48, 200)] {
        let case = Case::new(vocabulary, width, targets);
        let hidden = wide(&case.hidden);
        let weights = wide(&case.weights);
        for isa in Isa::available() {
            let one = case.run(isa, 1);
            let (scores, dhidden, grad) = &one;
            let mut expected_hidden = vec![0.0; hidden.len()];
            let mut expected_grad = vec![0.0; weights.len()];
            for (target, slope) in case.slopes.iter().enumerate() {
                let [logprob, entropy] = case.score(target, &hidden, &weights);
                assert!((f64::from(scores[target].logprob) - logprob).abs() < 1e-5);
                assert!((f64::from(scores[target].entropy) - entropy).abs() < 1e-5);
                for (entry, log) in case.logs(target, &hidden, &weights).into_iter().enumerate() {
                    let hit = if entry == case.ids[target] as usize { 1.0 } else { 0.0 };
                    let d = f64::from(slope.logprob) * (hit - log.exp())
                        - f64::from(slope.entropy) * log.exp() * (log + entropy);
                    for k in 0..width {
                        expected_hidden[target * width + k] += d * weights[entry * width + k];
                        expected_grad[entry * width + k] += d * hidden[target * width + k];
                    }
                }
            }
            for (found, expected) in dhidden.iter().chain(grad).zip(expected_hidden.iter().chain(&expected_grad)) {
                assert!((f64::from(*found) - expected).abs() < 2e-5, "{isa:?} {vocabulary}: {found}, {expected}");
            }
            assert!((2..4).all(|threads| case.run(isa, threads) == one), "{isa:?}: the number of threads shows");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let case = Case::new(37, 6, 5);
    let hidden = wide(&case.hidden);
    let weights = wide(&case.weights);
    let (_, dhidden, grad) = case.run(Isa::best(), 2);
    let close = |found: f32, loss: &dyn Fn(f64) -> f64| {
        let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
        assert!((f64::from(found) - slope).abs() < 1e-5, "{found}, differences give {slope}");
    };
    let moved = |values: &[f64], at: usize, step: f64| {
        let mut values = values.to_vec();
        values[at] += step;
        values
    };
    for (at, &found) in dhidden.iter().enumerate() {
        close(found, &|step| case.loss(&moved(&hidden, at, step), &weights));
    }
    for (at, &found) in grad.iter().enumerate() {
        close(found, &|step| case.loss(&hidden, &moved(&weights, at, step)));
    }
}

#[test]
fn scoring_alone_says_the_same() {
    let case = Case::new(300, 32, 130);
    let packed = Packed::from_f32(&case.weights, case.vocabulary, case.width);
    assert_eq!(score(&Team::new(2), &packed, None, &case.hidden, &case.ids), case.run(Isa::best(), 1).0);
}

/// Covers several tiles of the vocabulary, and more targets than have logits at once.
#[test]
fn what_targets_are_drawn_to_counts_as_defined() {
    for (vocabulary, width, targets) in [(5, 3, 2), (403, 48, 200)] {
        let case = Case::new(vocabulary, width, targets);
        let hidden = wide(&case.hidden);
        let weights = wide(&case.weights);
        for isa in Isa::available() {
            let (_, plain_hidden, plain_grad) = case.run(isa, 1);
            let mut drawn = Drawn::new(&case);
            let one = case.learn(isa, 1, &mut drawn);
            let mut expected_hidden = wide(&plain_hidden);
            let mut expected_grad = wide(&plain_grad);
            let mut apart = drawn.apart.iter();
            for target in 0..targets {
                let logs = case.logs(target, &hidden, &weights);
                for (entry, p, q) in drawn.pairs(target, &logs) {
                    let d = f64::from(Drawn::weight(target)) * (q - p);
                    for k in 0..width {
                        expected_hidden[target * width + k] += d * weights[entry * width + k];
                        expected_grad[entry * width + k] += d * hidden[target * width + k];
                    }
                }
                if drawn.distillation(target).is_some() {
                    let &(told, nats) = apart.next().unwrap();
                    assert!(
                        told == target && (nats - drawn.divergence(target, &logs)).abs() < 1e-5,
                        "{target}: {nats}"
                    );
                }
            }
            assert!(apart.next().is_none(), "told of what is drawn to nothing");
            for (found, expected) in one.0.iter().chain(&one.1).zip(expected_hidden.iter().chain(&expected_grad)) {
                assert!((f64::from(*found) - expected).abs() < 1e-4, "{isa:?} {vocabulary}: {found}, {expected}");
            }
            let same = |threads| case.learn(isa, threads, &mut Drawn::new(&case)) == one;
            assert!((2..4).all(same), "{isa:?}: the number of threads shows");
        }
    }
}

#[test]
fn what_targets_are_drawn_to_agrees_with_finite_differences() {
    let case = Case::new(37, 6, 5);
    let hidden = wide(&case.hidden);
    let weights = wide(&case.weights);
    let mut drawn = Drawn::new(&case);
    let (dhidden, grad) = case.learn(Isa::best(), 2, &mut drawn);
    let loss = |hidden: &[f64], weights: &[f64]| {
        let term =
            |target| f64::from(Drawn::weight(target)) * drawn.divergence(target, &case.logs(target, hidden, weights));
        case.loss(hidden, weights) + (0..5).map(term).sum::<f64>()
    };
    let moved = |values: &[f64], at: usize, step: f64| {
        let mut values = values.to_vec();
        values[at] += step;
        values
    };
    let close = |found: f32, loss: &dyn Fn(f64) -> f64| {
        let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
        assert!((f64::from(found) - slope).abs() < 2e-5, "{found}, differences give {slope}");
    };
    for (at, &found) in dhidden.iter().enumerate() {
        close(found, &|step| loss(&moved(&hidden, at, step), &weights));
    }
    for (at, &found) in grad.iter().enumerate() {
        close(found, &|step| loss(&hidden, &moved(&weights, at, step)));
    }
}

#[test]
fn the_likeliest_are_those_of_all_logits_in_order() {
    let case = Case::new(300, 32, 130);
    let packed = Packed::from_f32(&case.weights, case.vocabulary, case.width);
    let ask = |threads, count| likeliest(&Team::new(threads), &packed, None, &case.hidden, count);
    let all = ask(2, 1000);
    let few = ask(2, 7);
    assert_eq!((all.len(), few.len()), (130, 130));
    assert_eq!(few, ask(3, 7));
    let hidden = wide(&case.hidden);
    let weights = wide(&case.weights);
    for (target, (all, few)) in all.iter().zip(&few).enumerate() {
        let logs = case.logs(target, &hidden, &weights);
        assert_eq!((all.ids().len(), few.ids()), (300, &all.ids()[..7]));
        for (&id, &p) in all.ids().iter().zip(all.probabilities()) {
            assert!((f64::from(p).ln() - logs[id as usize]).abs() < 1e-4, "{target}, {id}: {p}");
        }
        let total: f64 = few.ids().iter().map(|&id| logs[id as usize].exp()).sum();
        let first = logs[few.ids()[0] as usize].exp() / total;
        assert!((f64::from(few.probabilities()[0]) - first).abs() < 1e-5, "{target}");
    }
}
