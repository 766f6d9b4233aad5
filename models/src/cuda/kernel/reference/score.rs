//! What logits say of a token.

/// What a row of logits says, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Said {
    /// Log-probability of the target.
    pub logprob: f64,
    /// Entropy of the distribution.
    pub entropy: f64,
    /// Logarithm of the softmax's denominator.
    pub normaliser: f64,
}

/// What `logits` say of `target`.
pub fn said(logits: &[f64], target: usize) -> Said {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let normaliser = max + logits.iter().map(|logit| (logit - max).exp()).sum::<f64>().ln();
    Said { logprob: logits[target] - normaliser, entropy: -weighted(logits, normaliser), normaliser }
}

/// What each logit gets of a loss with these slopes along the log-probability and along the entropy.
pub fn said_backward(logits: &[f64], target: usize, [along, across]: [f64; 2]) -> Vec<f64> {
    let Said { entropy, normaliser, .. } = said(logits, target);
    let slope = |(id, logit): (usize, &f64)| {
        let (log, onehot) = (logit - normaliser, f64::from(u8::from(id == target)));
        let p = log.exp();
        // What cannot be drawn has no slope: 0 · ∞ is NaN.
        if p == 0.0 { along * onehot } else { along * (onehot - p) - across * p * (log + entropy) }
    };
    logits.iter().enumerate().map(slope).collect()
}

/// `Σ p · ln p`.
fn weighted(logits: &[f64], normaliser: f64) -> f64 {
    let terms = logits.iter().map(|logit| logit - normaliser).filter(|log| *log > f64::NEG_INFINITY);
    terms.map(|log| log.exp() * log).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_differences() {
        let logits: Vec<f64> = (0..9).map(|i| (f64::from(i) * 1.7).sin() * 3.0).collect();
        let (slopes, target) = ([-0.7, 0.4], 4);
        let loss = |logits: &[f64]| {
            let said = said(logits, target);
            slopes[0] * said.logprob + slopes[1] * said.entropy
        };
        for (id, found) in said_backward(&logits, target, slopes).into_iter().enumerate() {
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
        let said = said(&[0.0, f64::NEG_INFINITY, 0.0], 0);
        assert!((said.entropy - 2.0f64.ln()).abs() < 1e-12 && (said.logprob + 2.0f64.ln()).abs() < 1e-12);
        let found = said_backward(&[0.0, f64::NEG_INFINITY, 0.0], 0, [1.0, 0.5]);
        assert!(found.iter().zip([0.5, 0.0, -0.5]).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
