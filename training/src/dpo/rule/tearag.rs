//! TeaRAG's pair rule (§4.3.2 of its paper, "DPO pair construction").

use serde::{Deserialize, Serialize};

use super::{Preference, total};
use crate::reward::tearag::part;
use crate::sample::Sample;

/// Pairs each trajectory that is good enough with the worst remaining one that fails in a known way.
///
/// The thresholds of the paper's eq. 14 and of its kinds of rejection were not published, so the defaults are ours. The
/// rule uses the reward parts of [`TeaRagReward`](crate::reward::tearag::TeaRagReward). A question without `R_p` counts
/// as single-hop.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TeaRagRule {
    /// Single-hop: minimum R_o / T of a chosen path, which must be well-formed. 1 is a right answer in one step.
    pub single: f64,
    /// Multi-hop: minimum R_o of a chosen path, which must be well-formed and have good reasoning.
    pub right: f64,
    /// Minimum R_p of good reasoning.
    pub reasoned: f64,
    /// Maximum R_o of a wrong answer: an easy rejection.
    pub wrong: f64,
    /// R_p below which the reasoning behind an answer that is not wrong counts as bad: a hard rejection.
    pub poor: f64,
}

impl Default for TeaRagRule {
    fn default() -> Self {
        TeaRagRule { single: 1.0, right: 0.8, reasoned: 0.5, wrong: 0.0, poor: 0.4 }
    }
}

/// Reward parts of a path.
#[derive(Debug, Clone, Copy)]
struct EarnedParts {
    outcome: f64,
    formed: bool,
    /// Process reward. `None` for a single hop.
    process: Option<f64>,
}

impl TeaRagRule {
    /// Selects the pairs of one question. Each chosen path, in the order of the samples, gets the next rejected path,
    /// in ascending order of the total reward. No path is rejected twice. Pairs are compared from their first turn on.
    pub fn pairs(&self, group: &[&Sample]) -> Vec<Preference> {
        let earned: Vec<EarnedParts> = group.iter().map(|sample| EarnedParts::of(sample)).collect();
        let mut walk: Vec<usize> = (0..group.len()).collect();
        walk.sort_by(|&one, &other| total(group[one]).total_cmp(&total(group[other])));
        let rejected = walk.into_iter().filter(|&place| self.rejects(&earned[place]));
        let chosen = (0..group.len()).filter(|&place| self.chooses(&earned[place]));
        chosen.zip(rejected).map(|(chosen, rejected)| Preference { chosen, rejected, turn: 0 }).collect()
    }

    fn chooses(&self, earned: &EarnedParts) -> bool {
        earned.formed
            && match earned.process {
                None => earned.outcome >= self.single,
                Some(process) => earned.outcome >= self.right && process >= self.reasoned,
            }
    }

    /// Returns `true` if a path fails in its format, in its answer (easy), or in its reasoning (hard, multi-hop only).
    fn rejects(&self, earned: &EarnedParts) -> bool {
        !earned.formed || earned.outcome <= self.wrong || earned.process.is_some_and(|process| process < self.poor)
    }
}

impl EarnedParts {
    fn of(sample: &Sample) -> EarnedParts {
        let part = |name: &str| sample.reward.as_ref().and_then(|reward| reward.parts.get(name).copied());
        EarnedParts {
            outcome: part(part::OUTCOME).unwrap_or(0.0),
            formed: part(part::FORMAT).is_some_and(|form| form > 0.0),
            process: part(part::PROCESS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::RewardValue;

    /// Sample with R_o, R_f and, for multi-hop questions, R_p.
    fn sample(outcome: f64, format: f64, process: Option<f64>) -> Sample {
        let parts = [(part::OUTCOME, Some(outcome)), (part::FORMAT, Some(format)), (part::PROCESS, process)];
        let parts = parts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let reward = Some(RewardValue { total: outcome + format + process.unwrap_or(0.0), parts });
        Sample { reward, ..searched("", &[]) }
    }

    fn pairs(group: &[Sample]) -> Vec<(usize, usize)> {
        let pairs = TeaRagRule::default().pairs(&group.iter().collect::<Vec<_>>());
        pairs.into_iter().map(|Preference { chosen, rejected, .. }| (chosen, rejected)).collect()
    }

    #[test]
    fn multi_hop_pairs_depend_on_answer_format_and_reasoning() {
        let group = [
            sample(1.0, 1.0, Some(0.6)),  // chosen
            sample(1.0, 1.0, Some(0.3)),  // hard
            sample(0.0, 1.0, Some(0.7)),  // easy
            sample(1.0, 0.0, Some(0.9)),  // without form
            sample(0.8, 1.0, Some(0.5)),  // chosen, just so
            sample(1.0, 1.0, Some(0.45)), // neither
            sample(0.5, 1.0, Some(0.9)),  // neither
        ];
        // In ascending order of their sums: 1.7, 1.9, 2.3.
        assert_eq!(pairs(&group), [(0, 2), (4, 3)]);
        let more: Vec<Sample> = group.iter().cloned().chain(vec![group[0].clone(); 3]).collect();
        assert_eq!(pairs(&more), [(0, 2), (4, 3), (7, 1)], "none is rejected twice");
    }

    #[test]
    fn single_hop_pairs_require_an_answer_in_one_step() {
        let group = [
            sample(1.0, 1.0, None),
            sample(0.5, 1.0, None), // right in two steps: neither
            sample(0.0, 1.0, None),
            sample(0.9, 0.0, None),
            sample(1.0, 1.0, None),
        ];
        // In ascending order of their sums: 0.9, 1.0.
        assert_eq!(pairs(&group), [(0, 3), (4, 2)]);
        assert_eq!(pairs(&group[..2]), []);
    }
}
