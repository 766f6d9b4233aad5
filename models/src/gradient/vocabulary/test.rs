#![allow(clippy::unwrap_used)]

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

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
        let (weights, hidden) = (values(vocabulary * width), values(targets * width));
        let slopes =
            values(2 * targets).chunks_exact(2).map(|two| Slope { logprob: two[0], entropy: two[1] }).collect();
        let ids = (0..targets).map(|_| random.random_range(0..vocabulary as u32)).collect();
        Self { vocabulary, width, weights, hidden, ids, slopes }
    }

    /// Logarithms of target `target`'s distribution, by the definition.
    fn logs(&self, target: usize, hidden: &[f64], weights: &[f64]) -> Vec<f64> {
        let state = &hidden[target * self.width..][..self.width];
        let logit = |row: &[f64]| row.iter().zip(state).map(|(a, b)| a * b).sum::<f64>();
        let logits: Vec<f64> = weights.chunks_exact(self.width).map(logit).collect();
        let normaliser = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        logits.into_iter().map(|logit| logit - normaliser).collect()
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
        let team = Team::new(threads);
        let packed = Packed::from_f32(&self.weights, self.vocabulary, self.width);
        let transposed = packed.transposed();
        let head = Head { weights: &packed, transposed: &transposed };
        let (mut dhidden, mut grad) = (vec![f32::NAN; self.hidden.len()], vec![0.0; self.weights.len()]);
        let mut scores = Vec::new();
        let mut objective = |target: usize, score: Score| {
            assert_eq!(target, scores.len());
            scores.push(score);
            self.slopes[target]
        };
        learn_with(isa, &team, head, &self.hidden, &self.ids, &mut objective, &mut dhidden, Some(&mut grad));
        (scores, dhidden, grad)
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

#[test]
fn scores_and_gradients_agree_with_the_definition() {
    for (vocabulary, width, targets) in [(5, 3, 1), (16, 16, 4), (1000, 20, 7), (403, 48, 200)] {
        let case = Case::new(vocabulary, width, targets);
        let (hidden, weights) = (wide(&case.hidden), wide(&case.weights));
        for isa in Isa::available() {
            let one = case.run(isa, 1);
            let (scores, dhidden, grad) = &one;
            let (mut expected_hidden, mut expected_grad) = (vec![0.0; hidden.len()], vec![0.0; weights.len()]);
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
    let (hidden, weights) = (wide(&case.hidden), wide(&case.weights));
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
    assert_eq!(score(&Team::new(2), &packed, &case.hidden, &case.ids), case.run(Isa::best(), 1).0);
}
