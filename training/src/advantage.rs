//! Group-relative advantages: how much better a trajectory is than the others of its group.

use serde::{Deserialize, Serialize};

/// Formula that turns the rewards of a group into advantages. `r` is the reward; `mean` and `std` are those of its
/// group, where `std` is the unbiased estimate (n − 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advantage {
    /// `(r − mean) / (std + 1e-6)`; a group of one has mean 0 and std 1. This is verl's
    /// `compute_grpo_outcome_advantage`, which Search-R1, RouteRAG and Graph-R1 train with.
    #[default]
    Grpo,
    /// `(r − mean) / (std + 1e-4)`: TRL 0.16's `GRPOTrainer`, which GraphRAG-R1 pins.
    Trl,
    /// `(r − mean) / (std + 1e-9)`: OpenRLHF's `group_norm`.
    GroupNorm,
    /// `r − mean`: OpenRLHF's `reinforce_baseline`, which R1-Searcher trains with.
    Baseline,
}

impl Advantage {
    /// Computes the advantages of `rewards`. Trajectories of one question have the same number in `groups`, in any
    /// order. If all rewards of a group are equal, its advantages are zero up to rounding of the mean.
    ///
    /// In [`Advantage::Grpo`], the advantage of a group of one is its reward, as in the reference. In the others it
    /// is 0, because their references define none.
    ///
    /// # Panics
    /// If the two slices differ in length.
    pub fn group(self, rewards: &[f64], groups: &[usize]) -> Vec<f64> {
        assert_eq!(rewards.len(), groups.len(), "every reward needs a group");
        let mut order: Vec<usize> = (0..rewards.len()).collect();
        // A stable sort keeps the order of a group's members, and with it the rounding of their sums.
        order.sort_by_key(|&index| groups[index]);
        let mut advantages = vec![0.0; rewards.len()];
        for members in order.chunk_by(|&a, &b| groups[a] == groups[b]) {
            let own: Vec<f64> = members.iter().map(|&index| rewards[index]).collect();
            let (mean, scale) = self.center(&own);
            for (&index, reward) in members.iter().zip(own) {
                advantages[index] = (reward - mean) / scale;
            }
        }
        advantages
    }

    /// Returns the value to subtract from the rewards of a group, and the divisor.
    fn center(self, rewards: &[f64]) -> (f64, f64) {
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        let one = rewards.len() < 2;
        let epsilon = match self {
            // verl sets mean 0 and std 1 for a group of one, and still adds its epsilon.
            Advantage::Grpo if one => return (0.0, 1.0 + 1e-6),
            Advantage::Baseline => return (mean, 1.0),
            _ if one => return (mean, 1.0),
            Advantage::Grpo => 1e-6,
            Advantage::Trl => 1e-4,
            Advantage::GroupNorm => 1e-9,
        };
        let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
        (mean, (squares / (rewards.len() - 1) as f64).sqrt() + epsilon)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;
    use crate::outside::cases;

    #[derive(Deserialize)]
    struct Verl {
        name: String,
        rewards: Vec<f64>,
        group_ids: Vec<String>,
        advantage_per_sequence: Vec<f64>,
    }

    #[derive(Deserialize)]
    struct Trl {
        name: String,
        rewards: Vec<f64>,
        advantages: Vec<f64>,
    }

    fn close(kind: Advantage, name: &str, rewards: &[f64], groups: &[usize], expected: &[f64]) {
        let found = kind.group(rewards, groups);
        assert_eq!(found.len(), expected.len(), "{name}");
        for ((group, found), expected) in groups.iter().zip(found).zip(expected) {
            let own: Vec<f64> =
                rewards.iter().zip(groups).filter(|(_, of)| *of == group).map(|(reward, _)| *reward).collect();
            // The references compute in f32: rounding errors of a reward or a mean are divided by the deviation,
            // which may be small.
            let most = own.iter().fold(0.0f64, |most, reward| most.max(reward.abs()));
            let rounded = 4.0 * f64::from(f32::EPSILON) * most / kind.center(&own).1;
            let tolerance = 1e-5 + rounded * (1.0 + expected.abs());
            assert!((found - expected).abs() < tolerance, "{name}: {found} {expected} ± {tolerance}");
        }
    }

    #[test]
    fn grpo_advantages() {
        for case in cases::<Verl>("grpo_advantages", "verl") {
            let mut numbers = BTreeMap::new();
            let groups: Vec<usize> = (case.group_ids.iter())
                .map(|id| {
                    let next = numbers.len();
                    *numbers.entry(id).or_insert(next)
                })
                .collect();
            close(Advantage::Grpo, &case.name, &case.rewards, &groups, &case.advantage_per_sequence);
        }
        for case in cases::<Trl>("grpo_advantages", "trl") {
            close(Advantage::Trl, &case.name, &case.rewards, &vec![0; case.rewards.len()], &case.advantages);
        }
    }

    #[test]
    fn groups_of_one_and_equal_rewards() {
        assert!((Advantage::Grpo.group(&[0.5], &[3])[0] - 0.5).abs() < 1e-6);
        for kind in [Advantage::Trl, Advantage::GroupNorm, Advantage::Baseline] {
            assert_eq!(kind.group(&[0.5, 1.0, 1.0], &[3, 1, 1]), [0.0; 3]);
        }
        assert_eq!(Advantage::Baseline.group(&[1.0, 5.0, 0.0, 7.0], &[0, 1, 0, 1]), [0.5, -1.0, -0.5, 1.0]);
        assert!(Advantage::Grpo.group(&[], &[]).is_empty());
    }

    proptest! {
        /// Checks that advantages of a group sum to zero, keep the order of its rewards, and do not depend on other
        /// groups.
        #[test]
        fn groups_are_centered(
            rewards in prop::collection::vec(-2.0f64..2.0, 2..12),
            other in prop::collection::vec(-2.0f64..2.0, 0..6),
        ) {
            for kind in [Advantage::Grpo, Advantage::Trl, Advantage::GroupNorm, Advantage::Baseline] {
                let alone = kind.group(&rewards, &vec![0; rewards.len()]);
                prop_assert!(alone.iter().sum::<f64>().abs() < 1e-3);
                for (i, a) in alone.iter().enumerate() {
                    for (j, b) in alone.iter().enumerate() {
                        prop_assert!(rewards[i] < rewards[j] || a >= b);
                    }
                }
                let all: Vec<f64> = other.iter().chain(&rewards).copied().collect();
                let groups: Vec<usize> = (0..all.len()).map(|place| usize::from(place < other.len())).collect();
                prop_assert_eq!(&kind.group(&all, &groups)[other.len()..], &alone[..]);
            }
        }
    }
}
