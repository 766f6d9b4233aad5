//! Fingerprint of a policy's weights: the log-probabilities that they give to a fixed sequence.

use serde::Deserialize;

use super::AgentError;

/// Maximum number of tokens of the sequence.
const MOST_TOKENS: usize = 512;

/// Largest accepted difference of one log-probability, as a multiple of the tolerance.
const SINGLE: f32 = 10.0;

/// Log-probabilities that the weights of a policy give to a sequence. They distinguish the weights from others of the
/// same name.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogprobFingerprint {
    /// Token IDs of the sequence.
    pub ids: Vec<u32>,
    /// Log-probability of each token after the first, given all tokens before it.
    pub logprobs: Vec<f32>,
    /// Largest accepted mean difference. A single log-probability may differ by ten times as much.
    #[serde(default = "default_tolerance")]
    pub tolerance: f32,
}

/// Difference between a fingerprint and what weights compute.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FingerprintMismatch {
    /// Other log-probabilities.
    #[error(
        "log-probabilities of the fingerprint differ by {mean:.3} on average, and by {most:.3} at token {at}: {tolerance} on \
         average and ten times as much at a token are accepted"
    )]
    Differs {
        /// Mean difference.
        mean: f32,
        /// Largest difference.
        most: f32,
        /// Position of the token with the largest difference.
        at: usize,
        /// Tolerance of the fingerprint.
        tolerance: f32,
    },
    /// Another number of log-probabilities.
    #[error("{found} log-probabilities were computed for the {expected} of the fingerprint")]
    Count {
        /// Number of computed log-probabilities.
        found: usize,
        /// Number of log-probabilities of the fingerprint.
        expected: usize,
    },
}

fn default_tolerance() -> f32 {
    LogprobFingerprint::TOLERANCE
}

impl LogprobFingerprint {
    /// Default tolerance. Kernels, batches and 16-bit numbers differ by less, other weights by more.
    pub const TOLERANCE: f32 = 0.05;

    /// Checks the values of a file.
    ///
    /// # Errors
    /// [`AgentError::Option`] for lists of wrong lengths, numbers that are no log-probabilities, and a tolerance that
    /// is not above 0.
    pub(super) fn check(&self) -> Result<(), AgentError> {
        let refuse = |reason| Err(AgentError::Option { field: "fingerprint", reason });
        if !(2..=MOST_TOKENS).contains(&self.ids.len()) {
            return refuse("`ids` must hold from 2 to 512 token IDs");
        }
        if self.logprobs.len() != self.ids.len() - 1 {
            return refuse("`logprobs` must hold one number less than `ids`: the first token has none");
        }
        if !self.logprobs.iter().all(|logprob| logprob.is_finite() && *logprob <= 0.0) {
            return refuse("`logprobs` must be at most 0");
        }
        if !(self.tolerance.is_finite() && self.tolerance > 0.0) {
            return refuse("`tolerance` must be above 0");
        }
        Ok(())
    }

    /// Compares the fingerprint with the log-probabilities that weights compute.
    ///
    /// # Errors
    /// The difference, if it exceeds the tolerance.
    pub fn compare(&self, found: &[f32]) -> Result<(), FingerprintMismatch> {
        if found.len() != self.logprobs.len() {
            return Err(FingerprintMismatch::Count { found: found.len(), expected: self.logprobs.len() });
        }
        let differences: Vec<f32> = self.logprobs.iter().zip(found).map(|(a, b)| (a - b).abs()).collect();
        let mean = differences.iter().sum::<f32>() / differences.len().max(1) as f32;
        // `total_cmp` puts NaN above all numbers, so that it is found as the largest.
        let largest = differences.iter().copied().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let (at, most) = largest.unwrap_or((0, 0.0));
        // NaN must not pass, so the comparison is written for the good case.
        if mean <= self.tolerance && most <= self.tolerance * SINGLE {
            return Ok(());
        }
        // The first token has no log-probability.
        Err(FingerprintMismatch::Differs { mean, most, at: at + 1, tolerance: self.tolerance })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fingerprint() -> LogprobFingerprint {
        LogprobFingerprint { ids: vec![1, 2, 3, 4], logprobs: vec![-1.0, -2.0, -30.0], tolerance: 0.05 }
    }

    #[test]
    fn rounding_is_no_difference_and_other_weights_are() {
        let fingerprint = fingerprint();
        assert_eq!(fingerprint.compare(&[-1.01, -2.02, -30.05]), Ok(()));
        for other in [[-1.0, -2.0, -29.0], [-1.2, -2.2, -30.2], [-1.0, f32::NAN, -30.0]] {
            let error = fingerprint.compare(&other).unwrap_err();
            assert!(matches!(error, FingerprintMismatch::Differs { .. }), "{other:?}");
        }
        let told = fingerprint.compare(&[-1.0, -2.0, -29.0]).unwrap_err().to_string();
        assert!(told.contains("differ by 0.333 on average, and by 1.000 at token 3"), "{told}");
        let short = fingerprint.compare(&[-1.0]).unwrap_err();
        assert_eq!(short, FingerprintMismatch::Count { found: 1, expected: 3 });
    }

    #[test]
    fn invalid_lists_and_numbers_are_refused() {
        assert!(fingerprint().check().is_ok());
        for (change, word) in [
            (LogprobFingerprint { ids: vec![1], logprobs: Vec::new(), ..fingerprint() }, "from 2 to 512"),
            (LogprobFingerprint { logprobs: vec![-1.0], ..fingerprint() }, "one number less"),
            (LogprobFingerprint { logprobs: vec![-1.0, 0.5, -1.0], ..fingerprint() }, "at most 0"),
            (LogprobFingerprint { tolerance: 0.0, ..fingerprint() }, "above 0"),
        ] {
            assert!(change.check().unwrap_err().to_string().contains(word), "{change:?}");
        }
    }
}
