//! Response types of `POST /v1/rollouts`.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;
use waymark_agent::EpisodeEnd;
use waymark_runtime::evaluate::EpisodeRow;
use waymark_training::sample::{RewardValue, Sample};

/// Trajectories of a request, in the order of the questions.
#[derive(Debug, Serialize, ToSchema)]
pub struct RolloutBatch {
    /// ID of the batch.
    pub id: String,
    /// Always `rollout.batch`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Name of the policy.
    pub model: String,
    /// Short hash of the build, the weights and the policy's files. Equal exactly if all three are equal.
    pub generation: String,
    /// Trajectories that ended, in the order of the questions.
    pub trajectories: Vec<RolloutTrajectory>,
    /// Episodes that failed.
    pub failures: Vec<RolloutFailure>,
}

/// Event of a streamed batch.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum RolloutEvent {
    /// `event: trajectory`: a trajectory ended.
    Trajectory(Box<RolloutTrajectory>),
    /// `event: failure`: an episode failed; the others go on.
    Failure(RolloutFailure),
    /// `event: finished`: all episodes have ended.
    Finished(RolloutEnd),
}

/// End of a streamed batch.
#[derive(Debug, Serialize, ToSchema)]
pub struct RolloutEnd {
    /// ID of the batch.
    pub id: String,
    /// Name of the policy.
    pub model: String,
    /// Short hash of the build, the weights and the policy's files. Equal exactly if all three are equal.
    pub generation: String,
    /// Number of trajectories that were sent.
    pub trajectories: usize,
    /// Number of episodes that failed.
    pub failures: usize,
}

/// One trajectory. The lists that begin with `response` have the same length.
#[derive(Debug, Serialize, ToSchema)]
pub struct RolloutTrajectory {
    /// Index of the question in the request.
    pub question: usize,
    /// ID of the question, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question_id: Option<String>,
    /// Index among the trajectories of the question.
    pub sample: usize,
    /// Token IDs of the prompt.
    pub prompt_ids: Vec<u32>,
    /// Token IDs after the prompt: sampled, written for the policy, and observed.
    pub response_ids: Vec<u32>,
    /// 1 for tokens that the policy sampled and a loss may cover, 0 for all others.
    pub response_mask: Vec<u8>,
    /// Log-probabilities in nats at sampling time, of the full distribution at temperature 1. Null for tokens that were
    /// not sampled.
    pub response_logprobs: Vec<Option<f32>>,
    /// Total reward. Null without a reward function.
    #[schema(required)]
    pub reward: Option<f64>,
    /// Parts of the reward, by name.
    pub reward_parts: BTreeMap<String, f64>,
    /// Final answer, if there is one.
    #[schema(required)]
    pub answer: Option<String>,
    /// Reason the episode ended: `stop`, `length`, `turns`, `time` or `refused`.
    pub stop_reason: EpisodeEnd,
    /// Number of turns of the policy.
    pub num_turns: usize,
    /// Scores of the trajectory.
    pub metrics: RolloutScores,
}

/// Scores of a trajectory. Those of the answer are 0 without accepted answers.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RolloutScores {
    /// Exact match: 1 or 0.
    pub em: f64,
    /// Token F1 of the answer.
    pub f1: f64,
    /// SF-F1 of the retrieved text. Null without `support`.
    #[schema(required)]
    pub support_f1: Option<f64>,
    /// If `true`, every turn was a valid action, and the policy closed its answer by itself.
    pub valid: bool,
    /// Number of searches, repeated ones included.
    pub searches: usize,
    /// Number of searches that repeat the mode and the words of an earlier one.
    pub duplicates: usize,
    /// Cost of the searches, in passage searches, or by the cost model of the reward if it has one (`efficiency`).
    pub cost: f64,
    /// Number of searches with so much evidence that some was left out of the scores.
    pub cut_searches: usize,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Episode that failed.
#[derive(Debug, Serialize, ToSchema)]
pub struct RolloutFailure {
    /// Index of the question in the request.
    pub question: usize,
    /// Index among the trajectories of the question.
    pub sample: usize,
    /// Code of the error, as in error responses.
    pub code: &'static str,
    /// Reason of the failure.
    pub message: String,
}

/// Sequence of a trajectory in the form that trainers read.
#[derive(Debug, PartialEq)]
pub(super) struct RolloutTokens {
    pub(super) prompt_ids: Vec<u32>,
    pub(super) response_ids: Vec<u32>,
    pub(super) response_mask: Vec<u8>,
    pub(super) response_logprobs: Vec<Option<f32>>,
}

impl RolloutTokens {
    /// Returns the tokens of `sample`.
    pub(super) fn of(sample: &Sample) -> RolloutTokens {
        let prompt = sample.prompt_tokens;
        let learned = sample.loss_mask();
        let response_logprobs = sample.sampled_logprobs()[prompt..].to_vec();
        // The training loop encodes turns again, and tokens that differ from the sampled ones have no log-probability.
        let covered = |(learned, logprob): (&bool, &Option<f32>)| u8::from(*learned && logprob.is_some());
        RolloutTokens {
            prompt_ids: sample.tokens[..prompt].to_vec(),
            response_ids: sample.tokens[prompt..].to_vec(),
            response_mask: learned[prompt..].iter().zip(&response_logprobs).map(covered).collect(),
            response_logprobs,
        }
    }

    /// Returns the approximate size in JSON of so many tokens of a prompt and a response, in bytes.
    pub(super) fn bytes(prompt: usize, response: usize) -> usize {
        /// An ID and its comma.
        const ID: usize = 7;
        /// A mask and a log-probability with their commas.
        const ENTRY: usize = 16;
        ID * prompt + (ID + ENTRY) * response
    }
}

impl RolloutScores {
    /// Returns the scores of a row, whose episode cut the evidence of `cut_searches` searches.
    pub(super) fn of(row: &EpisodeRow, cut_searches: usize) -> RolloutScores {
        let counts = row.searches;
        let searches = [counts.passage, counts.graph, counts.hybrid, counts.triples, counts.kag, counts.hypergraph];
        RolloutScores {
            em: row.em,
            f1: row.f1,
            support_f1: row.support_f1,
            valid: row.valid,
            // Failed searches are among those of their modes.
            searches: searches.iter().sum(),
            duplicates: row.duplicates,
            cost: row.cost,
            cut_searches,
            seconds: row.seconds,
        }
    }
}

impl RolloutTrajectory {
    /// Adds a reward.
    pub(super) fn rewarded(mut self, reward: RewardValue) -> RolloutTrajectory {
        self.reward = Some(reward.total);
        self.reward_parts = reward.parts;
        self
    }
}

#[cfg(test)]
mod tests {
    use waymark_agent::{Timings, Trajectory, Usage};
    use waymark_engine::{Origin, Token};
    use waymark_runtime::evaluate::SearchCounts;
    use waymark_training::sample::SampleTask;

    use super::*;

    #[test]
    fn the_mask_covers_sampled_tokens_only() {
        let token = |origin, logprob| Token { id: 1, origin, logprob, forced: false };
        let tokens = vec![
            token(Origin::Prompt, None),
            token(Origin::Policy, Some(-0.5)),
            // Encoded again, and not sampled.
            token(Origin::Policy, None),
            token(Origin::Environment, None),
            token(Origin::Policy, Some(-0.25)),
        ];
        let trajectory = Trajectory {
            id: String::new(),
            tokens,
            prompt_tokens: 1,
            text: String::new(),
            actions: Vec::new(),
            evidence: Vec::new(),
            answer: None,
            finish: EpisodeEnd::Stop,
            usage: Usage::default(),
            timings: Timings::default(),
        };
        let tokens = RolloutTokens::of(&Sample::from_trajectory(trajectory, SampleTask::default()));
        assert_eq!(tokens.response_mask, [1, 0, 0, 1]);
        assert_eq!(tokens.response_logprobs, [Some(-0.5), None, None, Some(-0.25)]);
    }

    #[test]
    fn a_failed_search_counts_once() {
        let searches = SearchCounts { passage: 2, graph: 1, failed: 1, ..SearchCounts::default() };
        let row = EpisodeRow { searches, ..EpisodeRow::default() };
        assert_eq!(RolloutScores::of(&row, 0).searches, 3);
    }
}
