//! Right answers by cheap retrieval.

use serde::{Deserialize, Serialize};
use waymark::metric::{Cost, Searched};

use super::balance::balanced;
use super::exact::{ExactMatch, overlap};
use super::{Beside, Likeness, Reward, worth};
use crate::sample::{Reward as Worth, Sample};

/// RouteRAG's second stage (§3.2.1 of its paper; `TwoStageRewardManager` of its code): 0 for a wrong answer, else
/// `1 + (mean t − tᵢ)`, where `tᵢ = min(½ sᵢ / P95(s), ½)`, `sᵢ` is what the searches of trajectory i cost and the mean is
/// over all trajectories of the batch, right or wrong.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Efficiency {
    /// How searches are priced. A model of the cost that names no number of nodes takes that of each index where the
    /// index is known, as it is in training.
    pub cost: Cost,
    /// Which cost goes with which trajectory.
    pub pairing: Pairing,
}

/// Which cost goes with which trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// Its own, as in the paper.
    #[default]
    Own,
    /// That of another one, as in the reference program on `gpus` of them: it sorts trajectories by length before they are
    /// rewarded, and leaves the list of times as it was. For ablations.
    Balanced {
        /// How many GPUs the batch is spread over.
        gpus: usize,
    },
}

impl Reward for Efficiency {
    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        let costs: Vec<f64> = samples.iter().map(|sample| self.cost_of(sample)).collect();
        self.score_at(&samples.iter().collect::<Vec<_>>(), &costs)
    }

    fn score_beside(&self, samples: &[&Sample], beside: &[Beside<'_>], _: &Likeness) -> Vec<Worth> {
        let costs: Vec<f64> = beside.iter().map(|beside| beside.cost).collect();
        self.score_at(samples, &costs)
    }
}

/// What an answer is worth at an efficiency.
pub(super) fn paid(em: f64, efficiency: f64) -> f64 {
    if em > 0.0 { em + efficiency } else { 0.0 }
}

impl Efficiency {
    /// What samples are worth whose searches cost so much.
    fn score_at(&self, samples: &[&Sample], costs: &[f64]) -> Vec<Worth> {
        let lengths: Vec<usize> = samples.iter().map(|sample| sample.tokens.len()).collect();
        let efficiencies = efficiencies(&self.pairing.assign(costs, &lengths));
        let score = |((sample, efficiency), &cost): ((&&Sample, f64), &f64)| {
            let em = ExactMatch::earned(sample);
            worth(
                paid(em, efficiency),
                [("em", em), ("f1", overlap(sample)), ("efficiency", efficiency), ("cost", cost)],
            )
        };
        samples.iter().zip(efficiencies).zip(costs).map(score).collect()
    }

    fn cost_of(&self, sample: &Sample) -> f64 {
        let searches = sample.evidence.iter().map(|found| Searched {
            mode: found.mode,
            passages: found.passages.len(),
            seconds: found.seconds,
            cached: found.cached,
        });
        searches.map(|searched| self.cost.of(&searched)).sum()
    }
}

impl Pairing {
    /// The cost that each trajectory is rewarded with.
    fn assign(self, costs: &[f64], lengths: &[usize]) -> Vec<f64> {
        let Pairing::Balanced { gpus } = self else { return costs.to_vec() };
        let mut assigned = costs.to_vec();
        // Where the batch cannot be spread evenly the reference stops; here everything stays in its place.
        for (place, trajectory) in balanced(lengths, gpus).unwrap_or_default().into_iter().enumerate() {
            assigned[trajectory] = costs[place];
        }
        assigned
    }
}

/// By how much each cost is below the mean, as a share of twice the 95th percentile and clipped at half of that; sums to
/// zero. Where that percentile is 0, so are all efficiencies: the reference divides by it, and learns from NaN.
pub fn efficiencies(costs: &[f64]) -> Vec<f64> {
    let most = percentile(costs, 0.95);
    let scaled = |cost: &f64| if most > 0.0 { (0.5 * cost / most).min(0.5) } else { 0.0 };
    let scaled: Vec<f64> = costs.iter().map(scaled).collect();
    let mean = scaled.iter().sum::<f64>() / scaled.len().max(1) as f64;
    scaled.into_iter().map(|own| mean - own).collect()
}

/// The quantile `q` of `values` with linear interpolation between neighbours: numpy's `percentile`, and type 7 of Hyndman
/// and Fan 1996. 0 for no values.
pub fn percentile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}
