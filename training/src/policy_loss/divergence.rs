//! Estimators of the KL divergence from the reference, computed from the sampled token alone.

use serde::{Deserialize, Serialize};

/// Estimator of KL(policy ‖ reference) at one token (Schulman 2020, "Approximating KL divergence"; `kl_penalty` of
/// verl). `d = new − reference` is the difference of the log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// `d` (verl's `kl`).
    K1,
    /// `|d|` (`abs`).
    Absolute,
    /// `d² / 2` (`mse`).
    K2,
    /// `exp(−d) + d − 1`, kept within ±10 (`low_var_kl`).
    #[default]
    K3,
    /// `exp(−d) + d − 1` without bounds, as in TRL.
    K3Unbounded,
}

/// Bound of verl's estimate.
const BOUND: f64 = 10.0;

impl KlEstimator {
    /// Estimate and its derivative with respect to `new`.
    pub(super) fn of(self, new: f64, reference: f64) -> (f64, f64) {
        let d = new - reference;
        match self {
            KlEstimator::K1 => (d, 1.0),
            KlEstimator::Absolute => (d.abs(), if d == 0.0 { 0.0 } else { d.signum() }),
            KlEstimator::K2 => (0.5 * d * d, d),
            KlEstimator::K3 | KlEstimator::K3Unbounded => {
                let value = (-d).exp() + d - 1.0;
                let slope = 1.0 - (-d).exp();
                // The estimate is never negative, so only the upper bound matters.
                if self == KlEstimator::K3 && value > BOUND { (BOUND, 0.0) } else { (value, slope) }
            }
        }
    }
}
