//! Estimates of the divergence from the reference, from the token that was sampled alone.

use serde::{Deserialize, Serialize};

/// An estimate of KL(policy ‖ reference) at one token (Schulman 2020, "Approximating KL divergence"; `kl_penalty` of verl).
/// `d = new − reference` is the difference of its log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Divergence {
    /// `d` (verl's `kl`).
    K1,
    /// `|d|` (`abs`).
    Absolute,
    /// `d² / 2` (`mse`).
    K2,
    /// `exp(−d) + d − 1`, kept within ±10 (`low_var_kl`).
    #[default]
    K3,
    /// The same without bounds, as TRL has it.
    K3Unbounded,
}

/// Where verl cuts its estimate.
const BOUND: f64 = 10.0;

impl Divergence {
    /// The estimate and its slope in `new`.
    pub(super) fn of(self, new: f64, reference: f64) -> (f64, f64) {
        let d = new - reference;
        match self {
            Divergence::K1 => (d, 1.0),
            Divergence::Absolute => (d.abs(), if d == 0.0 { 0.0 } else { d.signum() }),
            Divergence::K2 => (0.5 * d * d, d),
            Divergence::K3 | Divergence::K3Unbounded => {
                let (value, slope) = ((-d).exp() + d - 1.0, 1.0 - (-d).exp());
                // It is never below zero, so only the upper bound is ever met.
                if self == Divergence::K3 && value > BOUND { (BOUND, 0.0) } else { (value, slope) }
            }
        }
    }
}
