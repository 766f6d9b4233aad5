//! Loss of a policy update: clipped probability ratios, KL divergence from the reference, and an entropy bonus.

mod divergence;
#[cfg(test)]
mod tests;

pub use divergence::KlEstimator;

use serde::{Deserialize, Serialize};
use waymark_models::gradient::{Objective, Score, Slope};

/// Coefficients of the loss. The defaults are those of RouteRAG and Search-R1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyLossTerms {
    /// Distance of a ratio from 1 at which it is clipped (`clip_ratio` of verl; ε in Schulman et al. 2017, eq. 7).
    pub clip: f64,
    /// Weight of the KL divergence from the reference (`kl_loss_coef`).
    pub kl: f64,
    /// Estimator of that divergence (`kl_loss_type`).
    pub divergence: KlEstimator,
    /// Weight of the entropy bonus (`entropy_coeff`: used in every reference run, but in none of the papers).
    pub entropy: f64,
}

impl Default for PolicyLossTerms {
    fn default() -> Self {
        PolicyLossTerms { clip: 0.2, kl: 0.001, divergence: KlEstimator::K3, entropy: 0.001 }
    }
}

/// Inputs of the loss at one target token.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossInputs {
    /// Log-probability under the policy that sampled it, in nats.
    pub old: f32,
    /// Log-probability under the frozen reference, in nats.
    pub reference: f32,
    /// Advantage of the token's trajectory.
    pub advantage: f32,
}

/// Loss of the target tokens of one pack:
///
/// `scale · Σ [ max(−A ρ, −A clip(ρ, 1 ± ε)) + β KL − η H ]`, `ρ = exp(new − old)` for each token
///
/// (`compute_policy_loss`, `kl_penalty` and `update_policy` of verl; DeepSeekMath, eq. 3, with the mean over tokens
/// instead of over sequences). A micro-batch of several packs uses one loss per pack with the same scale, and adds
/// their [`LossSums`].
#[derive(Debug)]
pub struct PolicyLoss<'a> {
    terms: PolicyLossTerms,
    inputs: &'a [LossInputs],
    scale: f64,
    sums: LossSums,
}

impl<'a> PolicyLoss<'a> {
    /// Creates the loss of targets with these inputs, in the order of the pack. `scale` is one over the number of
    /// targets in the micro-batch, divided by the number of micro-batches of the update. As in verl, a token of a short
    /// micro-batch therefore counts more.
    pub fn new(terms: PolicyLossTerms, inputs: &'a [LossInputs], scale: f64) -> PolicyLoss<'a> {
        PolicyLoss { terms, inputs, scale, sums: LossSums::default() }
    }

    /// Sums over the targets evaluated so far.
    pub fn sums(&self) -> LossSums {
        self.sums
    }
}

impl Objective for PolicyLoss<'_> {
    /// # Panics
    /// If there are fewer inputs than targets.
    fn slope(&mut self, target: usize, score: Score) -> Slope {
        let PolicyLossTerms { clip, kl, divergence, entropy } = self.terms;
        let input = self.inputs[target];
        let logprob = f64::from(score.logprob);
        let advantage = f64::from(input.advantage);
        let moved = logprob - f64::from(input.old);
        let ratio = moved.exp();
        let free = -advantage * ratio;
        let held = -advantage * ratio.clamp(1.0 - clip, 1.0 + clip);
        let (distance, steepness) = divergence.of(logprob, f64::from(input.reference));
        // If the clipped branch is larger, the ratio is out of bounds and the loss is constant in it.
        let clipped = held > free;
        let policy = if clipped { 0.0 } else { free };
        self.sums.add(&LossSums {
            targets: 1,
            policy: free.max(held),
            kl: distance,
            entropy: f64::from(score.entropy),
            // Only the pessimistic side of the clip stops the gradient (Schulman et al. 2017, eq. 7).
            clipped: usize::from(clipped),
            drift: -moved,
        });
        Slope { logprob: (self.scale * (policy + kl * steepness)) as f32, entropy: (-self.scale * entropy) as f32 }
    }
}

/// Sums over targets, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossSums {
    /// Number of targets.
    pub targets: usize,
    /// Sum of the clipped policy losses.
    pub policy: f64,
    /// Sum of the KL divergences from the reference, unweighted.
    pub kl: f64,
    /// Sum of the entropies, in nats.
    pub entropy: f64,
    /// Number of targets with a clipped ratio (`pg_clipfrac` is their share).
    pub clipped: usize,
    /// Sum of `old − new` (the mean is verl's `ppo_kl`).
    pub drift: f64,
}

impl LossSums {
    /// Adds the sums over other targets.
    pub fn add(&mut self, other: &LossSums) {
        self.targets += other.targets;
        self.policy += other.policy;
        self.kl += other.kl;
        self.entropy += other.entropy;
        self.clipped += other.clipped;
        self.drift += other.drift;
    }

    /// Means over the targets. All are zero without targets.
    pub fn means(&self, terms: &PolicyLossTerms) -> LossMeans {
        let mean = |sum: f64| sum / self.targets.max(1) as f64;
        let policy = mean(self.policy);
        let kl = mean(self.kl);
        let entropy = mean(self.entropy);
        LossMeans {
            loss: policy + terms.kl * kl - terms.entropy * entropy,
            policy,
            kl,
            entropy,
            clip_fraction: mean(self.clipped as f64),
            drift: mean(self.drift),
        }
    }
}

/// Means over targets, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LossMeans {
    /// Total loss.
    pub loss: f64,
    /// Policy term of the loss.
    pub policy: f64,
    /// KL divergence from the reference.
    pub kl: f64,
    /// Entropy, in nats.
    pub entropy: f64,
    /// Share of targets with a clipped ratio.
    pub clip_fraction: f64,
    /// Distance of the policy from the one that sampled: the mean of `old − new`.
    pub drift: f64,
}
