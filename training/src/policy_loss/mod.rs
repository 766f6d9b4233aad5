//! The loss of a policy update: clipped ratios, the divergence from the reference, an entropy bonus.

mod divergence;
#[cfg(test)]
mod tests;

pub use divergence::Divergence;

use serde::{Deserialize, Serialize};
use waymark_models::gradient::{Objective, Score, Slope};

/// What the loss is made of; the defaults are RouteRAG's and Search-R1's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Terms {
    /// How far a ratio may be from 1 before it stops to count (`clip_ratio` of verl; ε in Schulman et al. 2017, eq. 7).
    pub clip: f64,
    /// Weight of the divergence from the reference (`kl_loss_coef`).
    pub kl: f64,
    /// Which divergence that is (`kl_loss_type`).
    pub divergence: Divergence,
    /// Weight of the entropy, which lowers the loss (`entropy_coeff`: on in every reference run, in none of the papers).
    pub entropy: f64,
}

impl Default for Terms {
    fn default() -> Self {
        Terms { clip: 0.2, kl: 0.001, divergence: Divergence::K3, entropy: 0.001 }
    }
}

/// What is known of a target before the update.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stake {
    /// Log-probability under the policy that sampled it, in nats.
    pub old: f32,
    /// Log-probability under the frozen reference, in nats.
    pub reference: f32,
    /// Advantage of its trajectory.
    pub advantage: f32,
}

/// The loss of one pack's targets:
///
/// `scale · Σ [ max(−A ρ, −A clip(ρ, 1 ± ε)) + β KL − η H ]`, `ρ = exp(new − old)` for each token
///
/// (`compute_policy_loss`, `kl_penalty` and `update_policy` of verl; DeepSeekMath, eq. 3, with the mean over tokens instead
/// of over sequences). A micro-batch that takes several packs goes through one of these per pack with the same scale, and
/// [`Sums`] are added.
#[derive(Debug)]
pub struct PolicyLoss<'a> {
    terms: Terms,
    stakes: &'a [Stake],
    scale: f64,
    sums: Sums,
}

impl<'a> PolicyLoss<'a> {
    /// The loss of targets with these stakes, in the order of the pack. `scale` is one over the targets of the micro-batch,
    /// divided by the number of micro-batches of the update: verl's reduction, in which a token of a short micro-batch
    /// counts more.
    pub fn new(terms: Terms, stakes: &'a [Stake], scale: f64) -> PolicyLoss<'a> {
        PolicyLoss { terms, stakes, scale, sums: Sums::default() }
    }

    /// What the targets that were asked for add up to.
    pub fn sums(&self) -> Sums {
        self.sums
    }
}

impl Objective for PolicyLoss<'_> {
    /// # Panics
    /// If there are fewer stakes than targets.
    fn slope(&mut self, target: usize, score: Score) -> Slope {
        let Terms { clip, kl, divergence, entropy } = self.terms;
        let stake = self.stakes[target];
        let (logprob, advantage) = (f64::from(score.logprob), f64::from(stake.advantage));
        let moved = logprob - f64::from(stake.old);
        let ratio = moved.exp();
        let free = -advantage * ratio;
        let held = -advantage * ratio.clamp(1.0 - clip, 1.0 + clip);
        let (distance, steepness) = divergence.of(logprob, f64::from(stake.reference));
        // Where the clipped branch is the larger one the ratio is out of bounds, and the loss is flat in it.
        let clipped = held > free;
        let policy = if clipped { 0.0 } else { free };
        self.sums.add(&Sums {
            targets: 1,
            policy: free.max(held),
            kl: distance,
            entropy: f64::from(score.entropy),
            clipped: usize::from(clipped),
            drift: -moved,
        });
        Slope { logprob: (self.scale * (policy + kl * steepness)) as f32, entropy: (-self.scale * entropy) as f32 }
    }
}

/// Sums over targets, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sums {
    /// How many targets.
    pub targets: usize,
    /// The clipped policy losses.
    pub policy: f64,
    /// Divergences from the reference, without their weight.
    pub kl: f64,
    /// Entropies, in nats.
    pub entropy: f64,
    /// Targets whose ratio no longer counts (`pg_clipfrac` is their share).
    pub clipped: usize,
    /// `old − new` (the mean is verl's `ppo_kl`).
    pub drift: f64,
}

impl Sums {
    /// Adds those of other targets.
    pub fn add(&mut self, other: &Sums) {
        self.targets += other.targets;
        self.policy += other.policy;
        self.kl += other.kl;
        self.entropy += other.entropy;
        self.clipped += other.clipped;
        self.drift += other.drift;
    }

    /// The means over the targets; zeros where there are none.
    pub fn means(&self, terms: &Terms) -> Means {
        let mean = |sum: f64| sum / self.targets.max(1) as f64;
        let (policy, kl, entropy) = (mean(self.policy), mean(self.kl), mean(self.entropy));
        Means {
            loss: policy + terms.kl * kl - terms.entropy * entropy,
            policy,
            kl,
            entropy,
            clip_fraction: mean(self.clipped as f64),
            drift: mean(self.drift),
        }
    }
}

/// Means over targets: what a report shows.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Means {
    /// The whole loss.
    pub loss: f64,
    /// Its policy part.
    pub policy: f64,
    /// Divergence from the reference.
    pub kl: f64,
    /// Entropy, in nats.
    pub entropy: f64,
    /// Share of targets whose ratio no longer counts.
    pub clip_fraction: f64,
    /// How far the policy has moved from the one that sampled: the mean of `old − new`.
    pub drift: f64,
}
