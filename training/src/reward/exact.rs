//! Exact-match reward.

use waymark_agent::metric::{exact_match, f1};

use super::extract::{closed_answer, last_answer};
use super::{Reward, reward_value};
use crate::sample::{RewardValue, Sample};

/// Reward 1 for an answer that exactly matches an accepted one, otherwise 0: Search-R1 (its §3.4) and RouteRAG's
/// first stage (its §3.2.1).
///
/// The answer is the last one between tags in the reply. An unclosed or forced answer earns nothing, although the
/// server would show it: the policy has to learn to write and close its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExactMatch;

impl ExactMatch {
    /// Returns the reward of a reply.
    pub fn of(reply: &str, golds: &[String]) -> f64 {
        last_answer(reply).map_or(0.0, |answer| matched(answer, golds))
    }

    /// Returns the reward of a trajectory.
    pub(crate) fn of_sample(sample: &Sample) -> f64 {
        closed_answer(sample).map_or(0.0, |answer| matched(answer, &sample.golds))
    }
}

impl Reward for ExactMatch {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let score = |sample: &Sample| {
            let em = ExactMatch::of_sample(sample);
            reward_value(em, [("em", em), ("f1", overlap(sample))])
        };
        samples.iter().map(score).collect()
    }
}

fn matched(answer: &str, golds: &[String]) -> f64 {
    f64::from(u8::from(exact_match(answer, golds)))
}

/// Returns the F1 of the policy's answer. [`ExactMatch`] only reports it.
pub(super) fn overlap(sample: &Sample) -> f64 {
    closed_answer(sample).map_or(0.0, |answer| f1(answer, &sample.golds))
}
