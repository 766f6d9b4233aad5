//! Running the episodes of a batch, and scoring their trajectories.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::Instant;
use waymark_agent::metric::Cost;
use waymark_agent::{Policy, Trajectory};
use waymark_index::{Embed, EmbedError};
use waymark_runtime::evaluate::Question;
use waymark_training::reward::{RewardChoice, RewardScorer};
use waymark_training::rollout::{Rollout, RolloutJudge};
use waymark_training::sample::SampleTask;

use super::plan::RolloutPlan;
use super::trajectory::{RolloutFailure, RolloutScores, RolloutTokens, RolloutTrajectory};
use crate::api::auth::Caller;
use crate::api::blocking::run_blocking;
use crate::api::episodes::{self, EpisodeSeed, ServedEpisode};
use crate::api::error::{ApiError, Code};
use crate::api::follow;
use crate::api::state::AppState;

/// A batch that is being played. The episodes run while `played` is polled, and are canceled when it is dropped.
pub(super) struct Rollouts {
    /// ID of the batch.
    pub(super) id: String,
    /// Policy that plays.
    pub(super) policy: Arc<Policy>,
    /// Trajectories in the order in which they end.
    pub(super) played: BoxStream<'static, Result<PlayedRollout, RolloutFailure>>,
    /// Reward function. `None` if none was asked for.
    pub(super) scorer: Option<Arc<RewardScorer>>,
}

/// A trajectory before it is rewarded.
#[derive(Debug)]
pub(super) struct PlayedRollout {
    /// The trajectory as it is sent.
    pub(super) shown: RolloutTrajectory,
    /// Its sample and scores, from which the reward is computed. `None` without a reward function.
    rollout: Option<Rollout>,
}

impl PlayedRollout {
    /// Returns the approximate size of the trajectory in an answer, and of the question's texts that are kept for its
    /// reward, in bytes.
    pub(super) fn bytes(&self) -> usize {
        /// Size of the fields other than tokens and texts.
        const FIELDS: usize = 512;
        let shown = &self.shown;
        let tokens = RolloutTokens::bytes(shown.prompt_ids.len(), shown.response_ids.len());
        let question = self.rollout.as_ref().map_or(0, question_bytes);
        FIELDS + tokens + shown.answer.as_ref().map_or(0, String::len) + question
    }
}

/// Returns the size of a rollout's copies of the texts of its question, in bytes.
fn question_bytes(rollout: &Rollout) -> usize {
    let Rollout { sample, row, support, .. } = rollout;
    let lists = [&sample.golds, &sample.supporting, &sample.without, &row.golds, support];
    let texts = lists.into_iter().flatten().chain([&sample.question, &row.question]);
    texts.map(|text| size_of_val(text) + text.len()).sum()
}

/// Builds the episodes of a plan.
///
/// # Errors
/// If an option contradicts the policy, or a prompt does not fit.
pub(super) async fn start(state: &AppState, caller: &Caller, plan: RolloutPlan) -> Result<Rollouts, ApiError> {
    let RolloutPlan { id, policy, questions, episodes: asked, group, concurrency, reward, .. } = plan;
    // Only the running episodes hold evidence.
    let evidence = state.config.traces.evidence / concurrency;
    let built = episodes::build(state, caller, &policy, asked, group, evidence, EpisodeSeed::PerBatch).await;
    // The shared code that encodes prompts names the field of chat requests.
    let built = built.map_err(|error| error.renamed("messages", "questions"))?;
    if let Some(time) = built.iter().map(ServedEpisode::time).max() {
        // At worst each episode takes its whole time, and `concurrency` of them run at once.
        let waves = u32::try_from(built.len().div_ceil(concurrency)).unwrap_or(u32::MAX);
        caller.lifetime.end_by(Instant::now() + time * waves + state.config.connection.send);
    }
    let cost = reward.as_ref().and_then(RewardChoice::cost).unwrap_or_default();
    let scorer = reward.map(|reward| Arc::new(RewardScorer::new(reward.reward(), embedder(state))));
    let player = Arc::new(Player {
        state: state.clone(),
        caller: caller.clone(),
        policy: policy.clone(),
        questions,
        group,
        rewarded: scorer.is_some(),
        cost,
    });
    let played = stream::iter(built.into_iter().enumerate())
        .map(move |(place, episode)| {
            let player = player.clone();
            async move { player.play(place, episode).await }
        })
        // Unordered, so one long episode does not hold back the start of others.
        .buffer_unordered(concurrency)
        .boxed();
    Ok(Rollouts { id, policy, played, scorer })
}

/// Plays the episodes of a batch.
struct Player {
    state: AppState,
    caller: Caller,
    policy: Arc<Policy>,
    questions: Vec<Question>,
    /// Number of trajectories per question.
    group: usize,
    /// If `true`, the trajectories will be rewarded.
    rewarded: bool,
    /// Cost model of searches: that of the reward, or else the default.
    cost: Cost,
}

impl Player {
    /// Plays the episode at `place` of the batch to its end.
    async fn play(self: Arc<Self>, place: usize, episode: ServedEpisode) -> Result<PlayedRollout, RolloutFailure> {
        let question = place / self.group;
        let sample = place % self.group;
        let failed =
            |error: ApiError| RolloutFailure { question, sample, code: error.code.name(), message: error.message };
        let ended = follow::complete(episode, &self.policy, &self.state.metrics, &self.caller.accounts).await;
        let trajectory = ended.map_err(failed)?;
        // Scores compare megabytes of evidence with the supporting passages.
        run_blocking(move || Ok(self.evaluate(question, sample, trajectory))).await.map_err(failed)
    }

    fn evaluate(&self, index: usize, sample: usize, trajectory: Trajectory) -> PlayedRollout {
        let question = &self.questions[index];
        let cut_searches = trajectory.evidence.iter().filter(|search| search.cut.is_some()).count();
        let judge = RolloutJudge { cost: self.cost(), ..RolloutJudge::default() };
        let task =
            if self.rewarded { SampleTask::of(question, self.policy.protocol.name()) } else { SampleTask::default() };
        let (stored, row) = judge.evaluate(&self.state.runtime, &self.policy, question, trajectory, task);
        let tokens = RolloutTokens::of(&stored);
        let shown = RolloutTrajectory {
            question: index,
            question_id: Some(question.id.clone()).filter(|id| !id.is_empty()),
            sample,
            prompt_ids: tokens.prompt_ids,
            response_ids: tokens.response_ids,
            response_mask: tokens.response_mask,
            response_logprobs: tokens.response_logprobs,
            reward: None,
            reward_parts: std::collections::BTreeMap::new(),
            answer: stored.answer.clone(),
            stop_reason: stored.finish,
            num_turns: row.turns,
            metrics: RolloutScores::of(&row, cut_searches),
        };
        let rollout = self.rewarded.then(|| {
            let support = question.support.clone();
            Rollout { group: index, sample: stored, row, support }
        });
        PlayedRollout { shown, rollout }
    }

    /// Returns the prices of searches, for the graph that is served now.
    fn cost(&self) -> Cost {
        let library = self.state.library.as_ref();
        library.map_or(self.cost, |library| self.cost.over(library.live.current().manifest()))
    }
}

/// Rewards trajectories. They are one batch for rewards that compare trajectories.
///
/// # Errors
/// If the texts that the reward compares cannot be embedded.
pub(super) async fn reward(
    scorer: Option<&Arc<RewardScorer>>,
    played: Vec<PlayedRollout>,
) -> Result<Vec<RolloutTrajectory>, ApiError> {
    let (shown, rollouts): (Vec<RolloutTrajectory>, Vec<Option<Rollout>>) =
        played.into_iter().map(|played| (played.shown, played.rollout)).unzip();
    let Some(scorer) = scorer.cloned() else { return Ok(shown) };
    let rollouts: Vec<Rollout> = rollouts.into_iter().flatten().collect();
    let scored = run_blocking(move || {
        let failed = |error| ApiError::new(Code::Internal, format!("the reward could not be computed: {error}"));
        scorer.score(&rollouts).map_err(failed)
    });
    let rewards = scored.await?;
    Ok(shown.into_iter().zip(rewards).map(|(shown, reward)| shown.rewarded(reward)).collect())
}

/// Returns the server's embedder, or one that refuses: plans with rewards that need one were checked.
fn embedder(state: &AppState) -> Arc<dyn Embed> {
    match &state.embedder {
        Some(served) => served.embedder.clone(),
        None => Arc::new(NoEmbedder),
    }
}

/// Embedder of rewards that compare no texts.
struct NoEmbedder;

impl Embed for NoEmbedder {
    fn id(&self) -> &'static str {
        "none"
    }

    fn dims(&self) -> usize {
        0
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        match texts {
            [] => Ok(Vec::new()),
            _ => Err("this server has no embedder".into()),
        }
    }
}
