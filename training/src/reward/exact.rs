//! Whether the answer is a gold one.

use waymark::metric::{exact_match, f1};

use super::extract::{given, last_answer};
use super::{Reward, worth};
use crate::sample::{Reward as Worth, Sample};

/// 1 for an answer that matches a gold one exactly, else 0: Search-R1 (its §3.4) and RouteRAG's first stage (its §3.2.1).
///
/// The answer is the last one between tags in the reply. One that is not closed or was asked for counts for nothing, although
/// the server would show it: the policy has to learn to give and to close it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExactMatch;

impl ExactMatch {
    /// The reward of one reply.
    pub fn of(reply: &str, golds: &[String]) -> f64 {
        last_answer(reply).map_or(0.0, |answer| matched(answer, golds))
    }

    /// The reward of a trajectory.
    pub(crate) fn earned(sample: &Sample) -> f64 {
        given(sample).map_or(0.0, |answer| matched(answer, &sample.golds))
    }
}

impl Reward for ExactMatch {
    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        let score = |sample: &Sample| {
            let em = ExactMatch::earned(sample);
            worth(em, [("em", em), ("f1", overlap(sample))])
        };
        samples.iter().map(score).collect()
    }
}

fn matched(answer: &str, golds: &[String]) -> f64 {
    f64::from(u8::from(exact_match(answer, golds)))
}

/// F1 of the answer that was given: no part of the total, but worth watching.
pub(super) fn overlap(sample: &Sample) -> f64 {
    given(sample).map_or(0.0, |answer| f1(answer, &sample.golds))
}
