//! `/v1/traces/{id}/replay`: an episode once more, and what is different.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::difference::{Divergence, LogprobDifference, Made, SearchDifference, divergence, logprobs, searches};
use super::kept::{End, Kept};
use crate::agent::{AgentError, Episode, EpisodeOptions, Found, Reason, Trajectory};
use crate::api::auth::Caller;
use crate::api::beside::beside;
use crate::api::body::{Json, Wire};
use crate::api::episodes;
use crate::api::error::{ApiError, ErrorBody, Refusals};
use crate::api::state::AppState;
use crate::engine::{Origin, Token};

/// How to run a trace's episode again.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// Along its tokens, or anew.
    pub mode: ReplayMode,
}

impl Wire for ReplayRequest {}

/// How an episode is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayMode {
    /// Along the recorded tokens: each is computed and scored again, none is sampled. The searches are made again, and
    /// change no token.
    Forced,
    /// Anew, with the same question, options and seed.
    Free,
}

/// What came of running an episode again.
#[derive(Debug, Serialize, ToSchema)]
pub struct Replay {
    /// The trace's id.
    pub id: String,
    /// Always `trace.replay`.
    pub object: &'static str,
    /// How it was run.
    pub mode: ReplayMode,
    /// Whether all ids are the same: the prompt's, made of the question again, and all that follow. Of an episode that
    /// was broken off, as far as it went.
    pub ids_equal: bool,
    /// The first token that differs.
    #[schema(required)]
    pub divergence: Option<Divergence>,
    /// How the log-probabilities of sampled tokens differ, up to the divergence.
    pub logprobs: LogprobDifference,
    /// How what was found differs, search by search; those answered from the episode's own memory are left out. In a
    /// free replay the searches are compared up to the first one for something else; from there on each stands by itself.
    pub searches: Vec<SearchDifference>,
    /// The answer of a free replay; null in a forced one.
    #[schema(required)]
    pub answer: Option<String>,
    /// Why a free replay ended; null in a forced one.
    #[schema(required)]
    pub finish_reason: Option<Reason>,
}

/// Runs the episode of a trace again and tells what is different.
///
/// It is run by the very policy that answered: one that was replaced, loaded again or unloaded since is refused with
/// 409, since nothing it says could be compared. Nothing is kept of the replay.
#[utoipa::path(post, path = "/v1/traces/{id}/replay", operation_id = "replayTrace", tag = "traces",
    params(("id" = String, Path, description = "the id of the episode, completion or response")),
    request_body = ReplayRequest,
    responses(
        (status = 200, description = "what is different", body = Replay),
        (status = 409, description = "the policy that answered is gone", body = ErrorBody),
        Refusals,
    ))]
pub(in crate::api) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    Json(request): Json<ReplayRequest>,
) -> Result<axum::Json<Replay>, ApiError> {
    let kept = super::find(&state, &caller, id)?;
    let episode = again(&state, &kept).await?;
    caller.lifetime.end_by(Instant::now() + episode.time() + state.config.connection.send);
    let replay = match request.mode {
        ReplayMode::Forced => forced(&state, &kept, episode).await?,
        ReplayMode::Free => free(&state, &kept, episode).await?,
    };
    Ok(axum::Json(replay))
}

/// The same question to the same policy with the same options.
async fn again(state: &AppState, kept: &Arc<Kept>) -> Result<Episode, ApiError> {
    let policy = kept.asked.policy(state)?;
    let schema = kept.asked.options.json.is_some();
    let (runtime, kept) = (state.runtime.clone(), kept.clone());
    let build = move || -> Result<Episode, ApiError> {
        let options = EpisodeOptions { id: None, cites: false, ..kept.asked.options.clone() };
        Ok(Episode::new(&runtime, &policy, kept.asked.conversation.clone(), options)?)
    };
    // It is compiled once more, which is as much work as before.
    if schema { episodes::compile(state, build).await } else { beside(build).await }
}

async fn forced(state: &AppState, kept: &Kept, episode: Episode) -> Result<Replay, ApiError> {
    let record = &kept.record;
    let forced = episode.force(&record.tokens, &record.evidence).await?;
    // Of the ids only the prompt's could differ: they are made of the question again.
    let prompt = forced.prompt.iter().map(|&id| Token { id, origin: Origin::Prompt, logprob: None, forced: false });
    let now: Vec<Token> = prompt.chain(forced.tokens[record.prompt_tokens..].iter().copied()).collect();
    let differs = divergence(&record.tokens, &now, &state.runtime.tokenizer);
    Ok(Replay {
        id: kept.id().to_owned(),
        object: "trace.replay",
        mode: ReplayMode::Forced,
        ids_equal: differs.is_none(),
        divergence: differs,
        logprobs: logprobs(&record.tokens, &forced.tokens),
        searches: searched(kept, &forced.evidence),
        answer: None,
        finish_reason: None,
    })
}

async fn free(state: &AppState, kept: &Kept, episode: Episode) -> Result<Replay, ApiError> {
    let record = &kept.record;
    let now = run(episode).await?;
    // An episode that was broken off had no chance to say the rest.
    let compared = match kept.end {
        End::Finished { .. } => now.tokens.as_slice(),
        _ => &now.tokens[..now.tokens.len().min(record.tokens.len())],
    };
    let differs = divergence(&record.tokens, compared, &state.runtime.tokenizer);
    let same = differs.as_ref().map_or(usize::MAX, |divergence| divergence.at);
    let until = |tokens: &[Token]| tokens.len().min(same);
    Ok(Replay {
        id: kept.id().to_owned(),
        object: "trace.replay",
        mode: ReplayMode::Free,
        ids_equal: differs.is_none(),
        divergence: differs,
        logprobs: logprobs(&record.tokens[..until(&record.tokens)], &now.tokens[..until(&now.tokens)]),
        searches: searched(kept, &now.evidence),
        answer: now.answer,
        finish_reason: Some(now.finish),
    })
}

/// How what was found differs. An episode that was broken off had no chance to make the other searches.
fn searched(kept: &Kept, now: &[Found]) -> Vec<SearchDifference> {
    let mut differences = searches(&kept.record.evidence, now);
    if !matches!(kept.end, End::Finished { .. }) {
        differences.retain(|search| search.made != Made::Now);
    }
    differences
}

/// Runs an episode that nobody watches.
async fn run(episode: Episode) -> Result<Trajectory, AgentError> {
    let (sender, mut events) = mpsc::channel(64);
    let unheard = async { while events.recv().await.is_some() {} };
    tokio::join!(episode.run(sender), unheard).0
}
