//! Scores of target tokens.

/// Scores of a row of logits, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReferenceScore {
    /// Log-probability of the target.
    pub logprob: f64,
    /// Entropy of the distribution.
    pub entropy: f64,
    /// Logarithm of the softmax denominator.
    pub normalizer: f64,
}

/// Scores `target` under `logits`.
pub fn score_target(logits: &[f64], target: usize) -> ReferenceScore {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let normalizer = max + logits.iter().map(|logit| (logit - max).exp()).sum::<f64>().ln();
    ReferenceScore { logprob: logits[target] - normalizer, entropy: -weighted(logits, normalizer), normalizer }
}

/// Returns the gradient of the logits for a loss with these derivatives with respect to log-probability and entropy.
pub fn score_target_backward(logits: &[f64], target: usize, [along, across]: [f64; 2]) -> Vec<f64> {
    let ReferenceScore { entropy, normalizer, .. } = score_target(logits, target);
    let slope = |(id, logit): (usize, &f64)| {
        let log = logit - normalizer;
        let onehot = f64::from(u8::from(id == target));
        let p = log.exp();
        // A token of probability zero has no gradient through the entropy; 0 · ∞ would be NaN.
        if p == 0.0 { along * onehot } else { along * (onehot - p) - across * p * (log + entropy) }
    };
    logits.iter().enumerate().map(slope).collect()
}

/// Computes `Σ p · ln p`.
fn weighted(logits: &[f64], normalizer: f64) -> f64 {
    let terms = logits.iter().map(|logit| logit - normalizer).filter(|log| *log > f64::NEG_INFINITY);
    terms.map(|log| log.exp() * log).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_differences() {
        let logits: Vec<f64> = (0..9).map(|i| (f64::from(i) * 1.7).sin() * 3.0).collect();
        let slopes = [-0.7, 0.4];
        let target = 4;
        let loss = |logits: &[f64]| {
            let said = score_target(logits, target);
            slopes[0] * said.logprob + slopes[1] * said.entropy
        };
        for (id, found) in score_target_backward(&logits, target, slopes).into_iter().enumerate() {
            let nudged = |by: f64| {
                let mut logits = logits.clone();
                logits[id] += by;
                loss(&logits)
            };
            let wanted = (nudged(1e-6) - nudged(-1e-6)) / 2e-6;
            assert!((found - wanted).abs() < 1e-7, "{id}: {found}, by differences {wanted}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_adds_nothing() {
        let said = score_target(&[0.0, f64::NEG_INFINITY, 0.0], 0);
        assert!((said.entropy - 2.0f64.ln()).abs() < 1e-12 && (said.logprob + 2.0f64.ln()).abs() < 1e-12);
        let found = score_target_backward(&[0.0, f64::NEG_INFINITY, 0.0], 0, [1.0, 0.5]);
        assert!(found.iter().zip([0.5, 0.0, -0.5]).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
