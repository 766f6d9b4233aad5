//! EVO-RAG's rewards of single steps (§3.2 of its paper; there is no program).

mod weights;

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use waymark::agent::Action;
use waymark::metric::{exact_match, f1};

use super::{Beside, Likeness, Reward};
use crate::sample::{Act, Reward as Worth, Sample};

pub use weights::{Schedule, Stage, Steps};

/// What parts are called.
pub mod part {
    /// What the name of a weighed part begins with; the name of the reward follows, one of [`Steps::NAMES`](super::Steps::NAMES).
    pub const WEIGHED: &str = "weighed/";
}

/// From this share of the longest episode on a search that is like an earlier one costs its action (§3.2, `r_act`).
const LATE: f64 = 0.3;

/// The sum over all steps of their rewards, each weighed by stage and time (eq. 1 and 2). A step is a turn; the first is made
/// at time 0, as in the paper's algorithm 1.
///
/// Queries are compared by the embedder of the index, which is to be all-MiniLM-L6-v2 for the paper's `r_dup` and `r_act`.
/// Of a refusal a language model is to say whether it is right (§3.2: ChatGPT-4o, on the evidence so far). Here evidence is
/// enough once every supporting passage was found and none of those searches was withdrawn. An answer that had to be asked
/// for after the last step counts for nothing.
///
/// Where the support of a question is not known, neither a search nor a refusal is right or wrong: their rewards are 0. Where
/// only a part of it is known, a search that finds of that is paid; one that does not may have found the rest, and nothing tells
/// when all of it was found.
///
/// A search that could not be made is no fault of the policy: it costs its step and nothing else, and asking the same again is
/// no repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvoRag {
    /// Which weights.
    pub stage: Stage,
    /// Whether they change within an episode. Written only where they do not, so that runs from before it go on.
    #[serde(skip_serializing_if = "Schedule::is_dynamic")]
    pub schedule: Schedule,
    /// T_max: steps of the longest episode.
    pub steps: usize,
}

impl Default for EvoRag {
    fn default() -> Self {
        EvoRag { stage: Stage::First, schedule: Schedule::Dynamic, steps: 20 }
    }
}

impl EvoRag {
    /// The rewards of each step, not yet weighed.
    fn rewards(&self, sample: &Sample, likeness: &Likeness) -> Vec<Steps> {
        let mut queries: Vec<&str> = Vec::new();
        let mut rewards = Vec::with_capacity(sample.actions.len());
        for (time, act) in sample.actions.iter().enumerate() {
            let mut own = Steps { step: -1.0, ..Steps::default() };
            match &act.action {
                Action::Search(_) if has_failed(sample, act.turn) => {}
                Action::Search(request) => {
                    own.retrieval_bonus = finds(sample, act.turn).map_or(0.0, |finds| if finds { 1.0 } else { -1.0 });
                    let most = queries.iter().map(|query| likeness.cosine(query, &request.query)).reduce(f32::max);
                    own.overlap = most.map_or(0.0, |most| -f64::from(most));
                    let late = time as f64 >= LATE * self.steps as f64;
                    own.retrieval_action = if late && own.overlap < 0.0 { -1.0 } else { 0.0 };
                    queries.push(&request.query);
                }
                Action::Backtrack => own.backtrack = -1.0,
                Action::Refuse { .. } => {
                    own.refusal = is_enough(sample, act.turn).map_or(0.0, |enough| if enough { -1.0 } else { 1.0 });
                }
                Action::Answer { .. } | Action::Invalid => {}
            }
            rewards.push(own);
        }
        if let (Some(last), Some(answer)) = (rewards.last_mut(), sample.own_answer()) {
            let em = f64::from(u8::from(exact_match(answer, &sample.golds)));
            last.answer = 0.5 * (em + f1(answer, &sample.golds));
        }
        rewards
    }

    /// Their weighed sum, and as parts the sums of each, as it is and, under [`part::WEIGHED`], weighed.
    fn worth(&self, rewards: &[Steps]) -> Worth {
        let weights = |time: usize| Steps::weights(self.stage, self.schedule.time(time), self.steps);
        // The sum of nothing is −0, and would be shown as such.
        let total = rewards.iter().enumerate().map(|(time, own)| weights(time).weighed(own)).sum::<f64>() + 0.0;
        let mut parts = BTreeMap::new();
        for (at, name) in Steps::NAMES.into_iter().enumerate() {
            let plain = |own: &Steps| own.values()[at];
            let weighed = |(time, own): (usize, &Steps)| weights(time).values()[at] * plain(own);
            parts.insert(name.to_owned(), rewards.iter().map(plain).sum::<f64>() + 0.0);
            let sum = rewards.iter().enumerate().map(weighed).sum::<f64>() + 0.0;
            parts.insert(format!("{}{name}", part::WEIGHED), sum);
        }
        Worth { total, parts }
    }
}

impl Reward for EvoRag {
    fn needs_support(&self) -> bool {
        true
    }

    fn texts(&self, sample: &Sample, _: &Beside<'_>) -> Vec<String> {
        let query = |act: &Act| match &act.action {
            Action::Search(request) => Some(request.query.clone()),
            _ => None,
        };
        sample.actions.iter().filter_map(query).collect()
    }

    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        self.score_beside(&samples.iter().collect::<Vec<_>>(), &[], &Likeness::default())
    }

    fn score_beside(&self, samples: &[&Sample], _: &[Beside<'_>], likeness: &Likeness) -> Vec<Worth> {
        samples.iter().map(|sample| self.worth(&self.rewards(sample, likeness))).collect()
    }
}

/// Whether the whole support of the question is known.
fn is_known(sample: &Sample) -> bool {
    !sample.supporting.is_empty() && !sample.partly
}

/// Whether the search of a turn could not be made.
fn has_failed(sample: &Sample, turn: usize) -> bool {
    sample.evidence.iter().any(|found| found.turn == turn && found.error.is_some())
}

/// Whether the search of a turn found a supporting passage, where that can be told.
fn finds(sample: &Sample, turn: usize) -> Option<bool> {
    let mut found = sample.evidence.iter().filter(|found| found.turn == turn).flat_map(|found| &found.passages);
    let finds = found.any(|(id, _)| sample.supporting.contains(id));
    (finds || is_known(sample)).then_some(finds)
}

/// Whether all that the question takes was found up to a turn, by searches that stood then, where that can be told.
fn is_enough(sample: &Sample, turn: usize) -> Option<bool> {
    let stands = |withdrawn: Option<usize>| withdrawn.is_none_or(|by| by > turn);
    let before = sample.evidence.iter().filter(|found| found.turn < turn && stands(found.withdrawn));
    let found: HashSet<&String> = before.flat_map(|found| &found.passages).map(|(id, _)| id).collect();
    is_known(sample).then(|| sample.supporting.iter().all(|id| found.contains(id)))
}

#[cfg(test)]
mod tests;
