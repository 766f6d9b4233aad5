//! Backward passes.

use super::ReferenceSequence;

/// Returns the gradient of the input of [`rms_norm`](super::rms_norm).
pub fn rms_norm_backward(x: &[f64], weight: &[f64], gradient: &[f64], eps: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n + eps).sqrt();
    let pull: Vec<f64> = weight.iter().zip(gradient).map(|(weight, gradient)| weight * gradient).collect();
    let along = pull.iter().zip(x).map(|(pull, x)| pull * x).sum::<f64>() / n;
    pull.iter().zip(x).map(|(pull, x)| scale * pull - x * along * scale.powi(3)).collect()
}

/// Returns the gradients of gate and up of [`silu_mul`](super::silu_mul).
pub fn silu_mul_backward(gate: &[f64], up: &[f64], gradient: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let slopes = gate.iter().zip(up).zip(gradient).map(|((gate, up), gradient)| {
        let sigma = 1.0 / (1.0 + (-gate).exp());
        (gradient * up * sigma * (1.0 + gate * (1.0 - sigma)), gradient * gate * sigma)
    });
    slopes.unzip()
}

/// Returns the input gradient of [`rotate`](super::rotate): the gradient rotated by the negative angle.
pub fn rotate_back(head: &[f64], cos: &[f64], sin: &[f64]) -> Vec<f64> {
    let negative: Vec<f64> = sin.iter().map(|sin| -sin).collect();
    super::rotate(head, cos, &negative)
}

/// Gradients of attention's inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionGradients {
    /// Gradient of the query.
    pub query: Vec<f64>,
    /// Gradients of all keys up to the query's position.
    pub keys: Vec<Vec<f64>>,
    /// Gradients of all values up to the query's position.
    pub values: Vec<Vec<f64>>,
}

/// Returns the gradients of [`attend`](super::attend) for one query at `position`.
pub fn attend_backward(
    query: &[f64],
    sequence: &ReferenceSequence,
    position: usize,
    gradient: &[f64],
) -> AttentionGradients {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let times = |a: &[f64], by: f64| -> Vec<f64> { a.iter().map(|a| a * by).collect() };
    let root = 1.0 / (query.len() as f64).sqrt();
    let keys = &sequence.keys[..=position];
    let values = &sequence.values[..=position];
    let scores: Vec<f64> = keys.iter().map(|key| dot(query, key) * root).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp() / total).collect();
    let pulls: Vec<f64> = values.iter().map(|value| dot(gradient, value)).collect();
    let delta = dot(&weights, &pulls);
    let slopes: Vec<f64> = weights.iter().zip(&pulls).map(|(weight, pull)| weight * (pull - delta) * root).collect();
    let mut own = vec![0.0; query.len()];
    for (slope, key) in slopes.iter().zip(keys) {
        own.iter_mut().zip(key).for_each(|(own, key)| *own += slope * key);
    }
    AttentionGradients {
        query: own,
        keys: slopes.iter().map(|&slope| times(query, slope)).collect(),
        values: weights.iter().map(|&weight| times(gradient, weight)).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{attend, rms_norm, silu_mul};
    use super::*;

    const STEP: f64 = 1e-6;

    /// Derivative of `f · direction` with respect to each of `x`, by central differences.
    fn numeric(x: &[f64], direction: &[f64], f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
        let at = |x: &[f64]| f(x).iter().zip(direction).map(|(y, d)| y * d).sum::<f64>();
        let nudged = |i: usize, by: f64| {
            let mut x = x.to_vec();
            x[i] += by;
            at(&x)
        };
        (0..x.len()).map(|i| (nudged(i, STEP) - nudged(i, -STEP)) / (2.0 * STEP)).collect()
    }

    fn close(found: &[f64], wanted: &[f64]) {
        assert_eq!(found.len(), wanted.len());
        assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}, by differences {wanted:?}");
    }

    fn wave(len: usize, pace: f64) -> Vec<f64> {
        (0..len).map(|i| (i as f64 * pace + 0.3).sin()).collect()
    }

    #[test]
    fn slopes_are_those_of_differences() {
        let x = wave(8, 0.7);
        let w = wave(8, 1.3);
        let d = wave(8, 2.1);
        close(&rms_norm_backward(&x, &w, &d, 1e-5), &numeric(&x, &d, |x| rms_norm(x, &w, 1e-5)));
        let (gate, up) = silu_mul_backward(&x, &w, &d);
        close(&gate, &numeric(&x, &d, |x| silu_mul(x, &w)));
        close(&up, &numeric(&w, &d, |w| silu_mul(&x, w)));
        let cos = wave(4, 0.4);
        let sin = wave(4, 0.9);
        close(&rotate_back(&d, &cos, &sin), &numeric(&x, &d, |x| super::super::rotate(x, &cos, &sin)));
    }

    #[test]
    fn attention_slopes_are_those_of_differences() {
        let query = wave(4, 0.7);
        let gradient = wave(4, 2.3);
        let rows = |pace: f64| (0..5).map(|i| wave(4, pace + i as f64 * 0.31)).collect::<Vec<_>>();
        let sequence = ReferenceSequence { keys: rows(0.5), values: rows(1.1) };
        let slopes = attend_backward(&query, &sequence, 3, &gradient);
        close(&slopes.query, &numeric(&query, &gradient, |query| attend(query, &sequence, 3)));
        assert_eq!((slopes.keys.len(), slopes.values.len()), (4, 4));
        for i in 0..4 {
            let with = |keys: bool, x: &[f64]| {
                let mut other = sequence.clone();
                let place = if keys { &mut other.keys[i] } else { &mut other.values[i] };
                *place = x.to_vec();
                attend(&query, &other, 3)
            };
            close(&slopes.keys[i], &numeric(&sequence.keys[i], &gradient, |x| with(true, x)));
            close(&slopes.values[i], &numeric(&sequence.values[i], &gradient, |x| with(false, x)));
        }
    }
}
