//! Reward for correct answers with cheap retrieval.

use serde::{Deserialize, Serialize};
use waymark_agent::metric::{Cost, PricedSearch};

use super::balance::balanced;
use super::exact::{ExactMatch, overlap};
use super::{Reward, RewardContext, TextSimilarity, reward_value};
use crate::sample::{RewardValue, Sample};

/// Reward of RouteRAG's second stage (§3.2.1 of its paper; `TwoStageRewardManager` of its code): 0 for a wrong
/// answer, otherwise `1 + (mean t − tᵢ)` with `tᵢ = min(½ sᵢ / P95(s), ½)`, where `sᵢ` is the retrieval cost of
/// trajectory i and the mean is over all trajectories of the batch, correct or not.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Efficiency {
    /// Cost model of searches. If it names no number of nodes, the size of each index is used where the index is
    /// known, as in training.
    pub cost: Cost,
    /// Assignment of costs to trajectories.
    pub pairing: Pairing,
}

/// Assignment of costs to trajectories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// Every trajectory has its own cost, as in the paper.
    #[default]
    Own,
    /// Reproduces the reference program on `gpus` GPUs. It reorders trajectories before it computes rewards, to balance
    /// their lengths over the GPUs, but does not reorder the list of retrieval times. A trajectory then gets the cost
    /// of another one. For ablations.
    Balanced {
        /// Number of GPUs that share the batch.
        gpus: usize,
    },
}

impl Reward for Efficiency {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let costs: Vec<f64> = samples.iter().map(|sample| self.cost_of(sample)).collect();
        self.score_at(&samples.iter().collect::<Vec<_>>(), &costs)
    }

    fn score_in_context(
        &self,
        samples: &[&Sample],
        context: &[RewardContext<'_>],
        _: &TextSimilarity,
    ) -> Vec<RewardValue> {
        let costs: Vec<f64> = context.iter().map(|context| context.cost).collect();
        self.score_at(samples, &costs)
    }
}

/// Returns the reward of an answer with the given efficiency.
pub(super) fn efficiency_reward(em: f64, efficiency: f64) -> f64 {
    if em > 0.0 { em + efficiency } else { 0.0 }
}

impl Efficiency {
    /// Scores samples with the given costs.
    fn score_at(&self, samples: &[&Sample], costs: &[f64]) -> Vec<RewardValue> {
        let lengths: Vec<usize> = samples.iter().map(|sample| sample.tokens.len()).collect();
        let efficiencies = efficiencies(&self.pairing.assign(costs, &lengths));
        let score = |((sample, efficiency), &cost): ((&&Sample, f64), &f64)| {
            let em = ExactMatch::of_sample(sample);
            reward_value(
                efficiency_reward(em, efficiency),
                [("em", em), ("f1", overlap(sample)), ("efficiency", efficiency), ("cost", cost)],
            )
        };
        samples.iter().zip(efficiencies).zip(costs).map(score).collect()
    }

    /// Returns the cost of the searches of a trajectory.
    pub(crate) fn cost_of(&self, sample: &Sample) -> f64 {
        let searches = sample.evidence.iter().map(|found| PricedSearch {
            mode: found.mode,
            passages: found.passages.len(),
            seconds: found.seconds,
            cached: found.cached,
        });
        searches.map(|searched| self.cost.of(&searched)).sum()
    }
}

impl Pairing {
    /// Returns the cost that each trajectory is scored with.
    fn assign(self, costs: &[f64], lengths: &[usize]) -> Vec<f64> {
        let Pairing::Balanced { gpus } = self else { return costs.to_vec() };
        let mut assigned = costs.to_vec();
        // The reference program stops if the batch cannot be split evenly; here every trajectory keeps its own cost.
        for (place, trajectory) in balanced(lengths, gpus).unwrap_or_default().into_iter().enumerate() {
            assigned[trajectory] = costs[place];
        }
        assigned
    }
}

/// Computes how far each cost lies below the mean, as a share of twice the 95th percentile, where each scaled cost is
/// capped at ½. The results sum to zero. If the percentile is 0, all results are 0; the reference divides by it and
/// trains on NaN.
pub fn efficiencies(costs: &[f64]) -> Vec<f64> {
    let most = percentile(costs, 0.95);
    let scaled = |cost: &f64| if most > 0.0 { (0.5 * cost / most).min(0.5) } else { 0.0 };
    let scaled: Vec<f64> = costs.iter().map(scaled).collect();
    let mean = scaled.iter().sum::<f64>() / scaled.len().max(1) as f64;
    scaled.into_iter().map(|own| mean - own).collect()
}

/// Returns the quantile `q` of `values` with linear interpolation: numpy's `percentile`, type 7 of Hyndman and Fan
/// 1996. Returns 0 for an empty slice.
pub fn percentile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    // numpy's linear method: position q · (n − 1) between the sorted values.
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}
