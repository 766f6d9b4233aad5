//! Validation of rollout requests.

use std::sync::Arc;

use waymark_agent::{Conversation, ConversationMessage, EpisodeOptions, Policy, Role};
use waymark_runtime::evaluate::Question;
use waymark_training::reward::RewardChoice;

use super::request::{RolloutQuestion, RolloutRequest};
use crate::api::body::within;
use crate::api::episodes::{self, EpisodeRequest};
use crate::api::error::{ApiError, Code};
use crate::api::rag;
use crate::api::sampling_params::{self, RequestSampling};
use crate::api::state::AppState;

/// Maximum number of questions in a request.
const MAX_QUESTIONS: usize = 1024;

/// Maximum number of trajectories per question.
const MAX_GROUP: u32 = 64;

/// Maximum number of trajectories in a request. What is kept of each until the end is bounded by the answer's size.
const MAX_TRAJECTORIES: usize = 4096;

/// Maximum and default number of trajectories that are played at the same time.
const CONCURRENT: (u32, u32) = (64, 32);

/// Time limit of a trajectory in seconds. Policies have tighter ones, which would make results depend on the load of
/// the machine.
const SECONDS: f64 = 3600.0;

/// Checked request.
#[derive(Debug)]
pub(super) struct RolloutPlan {
    /// ID of the batch.
    pub(super) id: String,
    /// Policy without guidance.
    pub(super) policy: Arc<Policy>,
    /// Questions as scores need them.
    pub(super) questions: Vec<Question>,
    /// Conversation and options of each question's trajectories.
    pub(super) episodes: Vec<EpisodeRequest>,
    /// Number of trajectories per question.
    pub(super) group: usize,
    /// Number of trajectories that are played at the same time.
    pub(super) concurrency: usize,
    /// Reward function.
    pub(super) reward: Option<RewardChoice>,
    /// If `true`, trajectories are sent as they end.
    pub(super) streams: bool,
}

impl RolloutPlan {
    /// Checks a request for the policy `served`. `state` searches the index of the request.
    ///
    /// # Errors
    /// Names the field that is out of range or contradicts another one, or what the server lacks.
    pub(super) fn new(state: &AppState, served: &Policy, request: RolloutRequest) -> Result<RolloutPlan, ApiError> {
        let group = within("n", request.n, 1, MAX_GROUP)?.unwrap_or(1) as usize;
        check_count(request.questions.len(), group)?;
        let (most, usual) = CONCURRENT;
        let concurrency = within("concurrency", request.concurrency, 1, most)?.unwrap_or(usual) as usize;
        let streams = request.stream.unwrap_or(false);
        check_reward(state, request.reward.as_ref(), streams)?;

        let id = episodes::id("rollout");
        let seed = episodes::seed(request.seed);
        let options = EpisodeOptions { id: Some(id.clone()), seed, ..options(&request)? };
        let mut questions = Vec::with_capacity(request.questions.len());
        let mut episodes = Vec::with_capacity(request.questions.len());
        for (index, asked) in request.questions.into_iter().enumerate() {
            let conversation = conversation(index, &asked)?;
            let options =
                EpisodeOptions { prompt: asked.prompt_ids.clone(), without: asked.without.clone(), ..options.clone() };
            episodes.push(EpisodeRequest { conversation, options });
            questions.push(question(asked));
        }
        Ok(RolloutPlan {
            id,
            policy: unguided(served),
            questions,
            episodes,
            group,
            concurrency,
            reward: request.reward,
            streams,
        })
    }

    /// Returns the number of trajectories.
    pub(super) fn count(&self) -> usize {
        self.episodes.len() * self.group
    }
}

/// Checks the number of questions and trajectories.
fn check_count(questions: usize, group: usize) -> Result<(), ApiError> {
    if questions == 0 || questions > MAX_QUESTIONS {
        let message = format!("`questions` has {questions} entries; it needs 1 to {MAX_QUESTIONS}");
        return Err(ApiError::invalid("questions", message));
    }
    // Cannot overflow, because both factors were checked.
    let count = questions * group;
    if count > MAX_TRAJECTORIES {
        let message = format!("`n`: these are {count} trajectories; a request may ask for {MAX_TRAJECTORIES}");
        return Err(ApiError::invalid("n", message));
    }
    Ok(())
}

/// Checks that the reward function can be computed here.
fn check_reward(state: &AppState, reward: Option<&RewardChoice>, streams: bool) -> Result<(), ApiError> {
    let Some(reward) = reward else { return Ok(()) };
    if streams && reward.is_relative() {
        let message = "`reward`: this reward compares the trajectories of a batch, so it needs `stream: false`";
        return Err(ApiError::invalid("reward", message));
    }
    if reward.needs_embedder() && state.embedder.is_none() {
        let message = "`reward`: this reward compares texts, and this server has no embedder: start it with `--index`";
        return Err(ApiError::new(Code::NotConfigured, message).with_param("reward"));
    }
    Ok(())
}

/// Returns the options that all trajectories share.
fn options(request: &RolloutRequest) -> Result<EpisodeOptions, ApiError> {
    let sampling = RequestSampling {
        // Not the policy's own values: the log-probabilities are those of the full distribution at temperature 1.
        temperature: request.temperature.or(Some(1.0)),
        top_p: request.top_p.or(Some(1.0)),
        top_k: request.top_k.or(Some(0)),
        ..RequestSampling::default()
    };
    let mut options = EpisodeOptions {
        // A vocabulary of 0 is enough here: only `logit_bias`, which this route does not have, is checked against it.
        sampling: sampling.sampling(0)?,
        max_tokens: sampling_params::most_tokens("max_tokens", request.max_tokens)?,
        ..EpisodeOptions::default()
    };
    rag::apply(&request.rag.clone().unwrap_or_default(), &mut options)?;
    // Guidance restricts the tokens, and a loss needs what the policy samples by itself.
    options.guided = Some(false);
    // The client gets the trajectories themselves, and `episodes::build` keeps no traces.
    options.store = Some(false);
    Ok(options)
}

fn conversation(index: usize, asked: &RolloutQuestion) -> Result<Conversation, ApiError> {
    let message = ConversationMessage::new(Role::User, asked.question.clone());
    Conversation::from_messages(vec![message]).map_err(|_| {
        let param = format!("questions[{index}].question");
        ApiError::invalid(&param, format!("`{param}` is empty"))
    })
}

fn question(asked: RolloutQuestion) -> Question {
    let question = Question {
        id: asked.id.unwrap_or_default(),
        question: asked.question,
        answers: asked.answers,
        supporting: asked.supporting,
        supporting_complete: true,
        kind: None,
        support: asked.support,
        without: asked.without,
    };
    question.with_distinct_support()
}

/// Returns `policy` as rollouts use it: without guided decoding, and with the time limit [`SECONDS`].
fn unguided(policy: &Policy) -> Arc<Policy> {
    let mut policy = Policy { guided: false, ..policy.clone() };
    policy.budget.seconds = SECONDS;
    Arc::new(policy)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_supporting_passage_that_is_listed_twice_counts_once() {
        let asked = serde_json::json!({"question": "q", "supporting": ["x", "x"], "support": ["X", "X"]});
        let question = question(serde_json::from_value(asked).unwrap());
        assert_eq!((question.supporting.len(), question.support.len()), (1, 1));
    }

    #[test]
    fn the_number_of_trajectories_is_bounded() {
        assert!(check_count(1, 1).is_ok());
        assert!(check_count(64, 64).is_ok());
        assert_eq!(check_count(0, 1).unwrap_err().param.as_deref(), Some("questions"));
        assert_eq!(check_count(1025, 1).unwrap_err().param.as_deref(), Some("questions"));
        assert_eq!(check_count(65, 64).unwrap_err().param.as_deref(), Some("n"));
    }

    #[test]
    fn a_rollout_is_not_guided_and_has_an_hour() {
        let policy = Policy { guided: true, ..Policy::builtin("routerag").unwrap() };
        let own = unguided(&policy);
        assert!(!own.guided);
        assert!((own.budget.seconds - SECONDS).abs() < f64::EPSILON);
    }
}
