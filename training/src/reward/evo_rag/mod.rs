//! EVO-RAG's step rewards (§3.2 of its paper, whose code was not published).

mod weights;

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use waymark_agent::Action;
use waymark_agent::metric::{exact_match, f1};

use super::extract::closed_answer;
use super::{Reward, RewardContext, TextSimilarity};
use crate::sample::{RewardValue, Sample, TurnAction};

pub use weights::{EvoRagStage, StepRewardName, StepRewards, WeightSchedule};

/// Names of the reward's components.
pub mod part {
    /// Prefix of a weighted component; one of `StepRewards::NAMES` follows.
    pub const WEIGHED: &str = "weighed/";
}

/// Share of the longest episode after which a search similar to an earlier one is penalized (§3.2, `r_act`).
const LATE: f64 = 0.3;

/// Sum of all step rewards, weighted by stage and time (eq. 1 and 2). A step is a turn; the first one is at time 0,
/// as in the paper's algorithm 1.
///
/// Queries are compared with the embedder of the index, which must be all-MiniLM-L6-v2 to match the paper's `r_dup`
/// and `r_act`. In the paper, a language model judges whether a refusal is correct (§3.2: ChatGPT-4o, on the evidence
/// so far). Here evidence is sufficient once every supporting passage was found by a search that was not withdrawn. An
/// answer that is not closed, or forced after the last step, earns nothing.
///
/// If the supporting passages of a question are not known, the rewards of searches and refusals are 0. If they are
/// known only in part, a search that finds one of them is rewarded; other searches and all refusals get 0, because
/// they may concern the unknown passages.
///
/// A failed search is not the policy's fault: it costs its step and nothing else, and repeating its query is not a
/// repetition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvoRagReward {
    /// Stage, which determines the weights.
    pub stage: EvoRagStage,
    /// Change of the weights within an episode. Serialized only if it is fixed, so that runs started before this
    /// field existed can resume.
    #[serde(skip_serializing_if = "WeightSchedule::is_dynamic")]
    pub schedule: WeightSchedule,
    /// T_max: time at which the weights reach the end of the stage. The paper has 20, the number of steps of its
    /// longest episode. Steps are counted from 0 and one may follow the last round, so that with `policy.budget.turns`
    /// here the last step of the longest episode has the final weights.
    pub steps: usize,
    /// Searches that earn the retrieval bonus. Always serialized, so that a run that began with another bonus is not
    /// resumed with this one.
    pub bonus: RetrievalBonus,
    /// Rewards that count, for ablations (Table 6). Empty counts all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<StepRewardName>,
}

/// Searches that earn EVO-RAG's retrieval bonus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetrievalBonus {
    /// Searches that find a supporting passage that no earlier search of the episode has found. Withdrawn searches
    /// count as earlier ones, too.
    #[default]
    New,
    /// Searches that find any supporting passage, as printed (§3.2). Repeating a hit then earns more than a right answer.
    Any,
}

impl Default for EvoRagReward {
    fn default() -> Self {
        EvoRagReward {
            stage: EvoRagStage::First,
            schedule: WeightSchedule::Dynamic,
            steps: 20,
            bonus: RetrievalBonus::New,
            only: Vec::new(),
        }
    }
}

impl EvoRagReward {
    /// Returns the unweighted rewards of each step.
    fn rewards(&self, sample: &Sample, similarity: &TextSimilarity) -> Vec<StepRewards> {
        let mut queries: Vec<&str> = Vec::new();
        let mut rewards = Vec::with_capacity(sample.actions.len());
        for (time, act) in sample.actions.iter().enumerate() {
            let mut own = StepRewards { step: -1.0, ..StepRewards::default() };
            match &act.action {
                Action::Search(_) if has_failed(sample, act.turn) => {}
                Action::Search(request) => {
                    let finds = self.bonus.finds(sample, act.turn);
                    own.retrieval_bonus = finds.map_or(0.0, |finds| if finds { 1.0 } else { -1.0 });
                    // r_dup: the similarity to the most similar earlier query, negated.
                    let cosine = |query: &&str| similarity.cosine(query, &request.query) as f32;
                    let most = queries.iter().map(cosine).reduce(f32::max);
                    own.overlap = most.map_or(0.0, |most| -f64::from(most));
                    // `time` counts from 0, as in the paper's algorithm 1.
                    let late = time as f64 >= LATE * self.steps as f64;
                    own.retrieval_action = if late && own.overlap < 0.0 { -1.0 } else { 0.0 };
                    // Failed searches never reach this line, so repeating one is free.
                    queries.push(&request.query);
                }
                Action::Backtrack => own.backtrack = -1.0,
                Action::Refuse { .. } => {
                    own.refusal = is_enough(sample, act.turn).map_or(0.0, |enough| if enough { -1.0 } else { 1.0 });
                }
                // Answers are rewarded below, and other actions cost their step only.
                _ => {}
            }
            rewards.push(own);
        }
        // κ rewards the answer in the last step only. Without one, tags of an answer may stand in a query.
        let answer = closed_answer(sample).filter(|_| sample.answer.is_some());
        if let (Some(last), Some(answer)) = (rewards.last_mut(), answer) {
            let em = f64::from(u8::from(exact_match(answer, &sample.golds)));
            last.answer = 0.5 * (em + f1(answer, &sample.golds));
        }
        rewards
    }

    /// Returns the weighted sum of step rewards. Components are the sum of each reward, unweighted and, with prefix
    /// [`part::WEIGHED`], weighted.
    fn value(&self, rewards: &[StepRewards]) -> RewardValue {
        let weights = |time: usize| {
            StepRewards::weights(self.stage, self.schedule.time(time), self.steps).restricted_to(&self.only)
        };
        // The empty sum of `f64` is −0 in Rust; adding 0 keeps it from being shown as "-0".
        let total = rewards.iter().enumerate().map(|(time, own)| weights(time).weighed(own)).sum::<f64>() + 0.0;
        let mut parts = BTreeMap::new();
        for (at, name) in StepRewards::NAMES.into_iter().enumerate() {
            let plain = |own: &StepRewards| own.values()[at];
            let weighed = |(time, own): (usize, &StepRewards)| weights(time).values()[at] * plain(own);
            parts.insert(name.to_owned(), rewards.iter().map(plain).sum::<f64>() + 0.0);
            let sum = rewards.iter().enumerate().map(weighed).sum::<f64>() + 0.0;
            parts.insert(format!("{}{name}", part::WEIGHED), sum);
        }
        RewardValue { total, parts }
    }
}

impl Reward for EvoRagReward {
    fn needs_support(&self) -> bool {
        true
    }

    fn texts(&self, sample: &Sample, _: &RewardContext<'_>) -> Vec<String> {
        let query = |act: &TurnAction| match &act.action {
            Action::Search(request) => Some(request.query.clone()),
            _ => None,
        };
        sample.actions.iter().filter_map(query).collect()
    }

    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        self.score_in_context(&samples.iter().collect::<Vec<_>>(), &[], &TextSimilarity::default())
    }

    fn score_in_context(
        &self,
        samples: &[&Sample],
        _: &[RewardContext<'_>],
        similarity: &TextSimilarity,
    ) -> Vec<RewardValue> {
        samples.iter().map(|sample| self.value(&self.rewards(sample, similarity))).collect()
    }
}

/// Returns `true` if all supporting passages of the question are known.
fn is_known(sample: &Sample) -> bool {
    !sample.supporting.is_empty() && !sample.partly
}

/// Returns `true` if the search of a turn failed.
fn has_failed(sample: &Sample, turn: usize) -> bool {
    sample.evidence.iter().any(|found| found.turn == turn && found.error.is_some())
}

impl RetrievalBonus {
    /// Returns `true` if the search of a turn earns the bonus. `None` if that cannot be decided.
    fn finds(self, sample: &Sample, turn: usize) -> Option<bool> {
        let earlier = sample.evidence.iter().filter(|found| found.turn < turn && self == RetrievalBonus::New);
        let known: HashSet<&String> = earlier.flat_map(|found| &found.passages).map(|(id, _)| id).collect();
        let mut found = sample.evidence.iter().filter(|found| found.turn == turn).flat_map(|found| &found.passages);
        let finds = found.any(|(id, _)| sample.supporting.contains(id) && !known.contains(id));
        (finds || is_known(sample)).then_some(finds)
    }
}

/// Returns `true` if searches before a turn found all supporting passages and were not withdrawn by then. `None` if
/// that cannot be decided.
fn is_enough(sample: &Sample, turn: usize) -> Option<bool> {
    let stands = |withdrawn: Option<usize>| withdrawn.is_none_or(|by| by > turn);
    let before = sample.evidence.iter().filter(|found| found.turn < turn && stands(found.withdrawn));
    let found: HashSet<&String> = before.flat_map(|found| &found.passages).map(|(id, _)| id).collect();
    is_known(sample).then(|| sample.supporting.iter().all(|id| found.contains(id)))
}

#[cfg(test)]
mod tests;
