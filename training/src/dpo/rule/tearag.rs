//! TeaRAG's pairs (§4.3.2 of its paper, "DPO pair construction").

use serde::{Deserialize, Serialize};

use super::{Preference, total};
use crate::reward::tearag::part;
use crate::sample::Sample;

/// Each trajectory that is good enough, with the worst one left that fails in a known way.
///
/// The bounds of the paper's eq. 14 and of its kinds of rejection are lost: their defaults are ours. It goes by the parts
/// that [`TeaRag`](crate::reward::tearag::TeaRag) rewards; a question of a single hop is one without its `R_p`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TeaRag {
    /// Of a single hop: R_o / T from which a path in the right form is chosen. 1 is a right answer in one step.
    pub single: f64,
    /// Of several hops: R_o from which such a path is chosen, if its reasoning is good too.
    pub right: f64,
    /// R_p from which reasoning is good.
    pub reasoned: f64,
    /// R_o up to which an answer is wrong: an easy rejection.
    pub wrong: f64,
    /// R_p below which the reasoning of an answer that is not wrong is bad: a hard rejection.
    pub poor: f64,
}

impl Default for TeaRag {
    fn default() -> Self {
        TeaRag { single: 1.0, right: 0.8, reasoned: 0.5, wrong: 0.0, poor: 0.4 }
    }
}

/// What a path earned.
#[derive(Debug, Clone, Copy)]
struct Earned {
    outcome: f64,
    formed: bool,
    /// None of a single hop.
    process: Option<f64>,
}

impl TeaRag {
    /// The pairs of one question: for each chosen path, in the order of the samples, the next that is rejected on a walk
    /// from the lowest sum of all three rewards upwards. None is rejected twice. They are compared from their beginnings on.
    pub fn pairs(&self, group: &[&Sample]) -> Vec<Preference> {
        let earned: Vec<Earned> = group.iter().map(|sample| Earned::of(sample)).collect();
        let mut walk: Vec<usize> = (0..group.len()).collect();
        walk.sort_by(|&one, &other| total(group[one]).total_cmp(&total(group[other])));
        let rejected = walk.into_iter().filter(|&place| self.rejects(&earned[place]));
        let chosen = (0..group.len()).filter(|&place| self.chooses(&earned[place]));
        chosen.zip(rejected).map(|(chosen, rejected)| Preference { chosen, rejected, turn: 0 }).collect()
    }

    fn chooses(&self, earned: &Earned) -> bool {
        earned.formed
            && match earned.process {
                None => earned.outcome >= self.single,
                Some(process) => earned.outcome >= self.right && process >= self.reasoned,
            }
    }

    /// Whether a path fails in its form, in its answer (easy), or in its reasoning (hard, of several hops alone).
    fn rejects(&self, earned: &Earned) -> bool {
        !earned.formed || earned.outcome <= self.wrong || earned.process.is_some_and(|process| process < self.poor)
    }
}

impl Earned {
    fn of(sample: &Sample) -> Earned {
        let part = |name: &str| sample.reward.as_ref().and_then(|reward| reward.parts.get(name).copied());
        Earned {
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
    use crate::sample::Reward;

    /// R_o, R_f and, of several hops, R_p.
    fn sample(outcome: f64, format: f64, process: Option<f64>) -> Sample {
        let parts = [(part::OUTCOME, Some(outcome)), (part::FORMAT, Some(format)), (part::PROCESS, process)];
        let parts = parts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let reward = Some(Reward { total: outcome + format + process.unwrap_or(0.0), parts });
        Sample { reward, ..searched("", &[]) }
    }

    fn pairs(group: &[Sample]) -> Vec<(usize, usize)> {
        let pairs = TeaRag::default().pairs(&group.iter().collect::<Vec<_>>());
        pairs.into_iter().map(|Preference { chosen, rejected, .. }| (chosen, rejected)).collect()
    }

    #[test]
    fn of_several_hops_answer_form_and_reasoning_count() {
        let group = [
            sample(1.0, 1.0, Some(0.6)),  // chosen
            sample(1.0, 1.0, Some(0.3)),  // hard
            sample(0.0, 1.0, Some(0.7)),  // easy
            sample(1.0, 0.0, Some(0.9)),  // without form
            sample(0.8, 1.0, Some(0.5)),  // chosen, just so
            sample(1.0, 1.0, Some(0.45)), // neither
            sample(0.5, 1.0, Some(0.9)),  // neither
        ];
        // By their sums: 1.7, 1.9, 2.3.
        assert_eq!(pairs(&group), [(0, 2), (4, 3)]);
        let more: Vec<Sample> = group.iter().cloned().chain(vec![group[0].clone(); 3]).collect();
        assert_eq!(pairs(&more), [(0, 2), (4, 3), (7, 1)], "none is rejected twice");
    }

    #[test]
    fn of_a_single_hop_one_step_counts() {
        let group = [
            sample(1.0, 1.0, None),
            sample(0.5, 1.0, None), // right in two steps: neither
            sample(0.0, 1.0, None),
            sample(0.9, 0.0, None),
            sample(1.0, 1.0, None),
        ];
        // By their sums: 0.9, 1.0.
        assert_eq!(pairs(&group), [(0, 3), (4, 2)]);
        assert_eq!(pairs(&group[..2]), []);
    }
}
