//! `/v1/traces/{id}/replay`: an episode once more, and what is different.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;
use utoipa::ToSchema;
use waymark_index::Mode;

use super::difference::{Divergence, LogprobDifference, Made, SearchDifference, divergence, logprobs, searches};
use super::kept::{Asked, End, Kept};
use super::recorder::keep;
use crate::agent::{
    AgentError, Cited, Episode, EpisodeOptions, Event, Found, MAX_K, MAX_WITHOUT, Part, Policy, Reason, Trajectory,
};
use crate::api::auth::Caller;
use crate::api::beside::beside;
use crate::api::body::{Json, Wire, within};
use crate::api::episodes;
use crate::api::error::{ApiError, ErrorBody, Refusals};
use crate::api::state::AppState;
use crate::engine::{Origin, Token};

/// How to run a trace's episode again. All but the mode is for free replays, and refused in forced ones.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// Along its tokens, or anew.
    pub mode: ReplayMode,
    /// Ids of passages that are not found, beside those that the trace's own searches left out: no more than 64 together.
    /// Whether there are such passages is not asked.
    #[schema(min_items = 1, max_items = 64)]
    pub without: Option<Vec<String>>,
    /// Which search is made, whatever the policy writes, in the place of what the trace's request said: `passage`, `graph`
    /// or `hybrid`; `triples` and `kag` where the policy's protocol shows what they find.
    #[schema(value_type = Option<String>)]
    pub search: Option<Mode>,
    /// How many passages a search returns, in the place of what the trace's request said.
    #[schema(minimum = 1, maximum = 200)]
    pub k: Option<usize>,
    /// Whether a trace of the replay is kept (`/v1/traces`), whose own replays search as it did; none is when not given.
    pub store: Option<bool>,
}

impl Wire for ReplayRequest {}

impl ReplayRequest {
    /// Refuses what makes no sense, by its name.
    fn check(&self) -> Result<(), ApiError> {
        let given = [
            ("without", self.without.is_some()),
            ("search", self.search.is_some()),
            ("k", self.k.is_some()),
            ("store", self.store == Some(true)),
        ];
        if let Some((name, _)) = given.into_iter().find(|(_, given)| *given && self.mode == ReplayMode::Forced) {
            return Err(ApiError::invalid(name, format!("`{name}` needs the mode `free`")));
        }
        within("k", self.k, 1, MAX_K)?;
        let Some(without) = &self.without else { return Ok(()) };
        if !(1..=MAX_WITHOUT).contains(&without.len()) {
            let message = format!("`without` must hold from 1 to {MAX_WITHOUT} ids, not {}", without.len());
            return Err(ApiError::invalid("without", message));
        }
        if let Some(at) = without.iter().position(String::is_empty) {
            let param = format!("without[{at}]");
            return Err(ApiError::invalid(&param, format!("`{param}` is empty")));
        }
        Ok(())
    }

    /// The options of a trace's episode with what is to be otherwise.
    fn options(&self, own: &EpisodeOptions) -> EpisodeOptions {
        let own = own.clone();
        let mut without = own.without;
        for id in self.without.iter().flatten() {
            if !without.contains(id) {
                without.push(id.clone());
            }
        }
        // What the trace's request said for its own mode is passed over where another one does not read it.
        let reads = |part: Part| self.search.is_none_or(|mode| part.unread(mode).is_none());
        EpisodeOptions {
            id: (self.store == Some(true)).then(|| episodes::id("replay")),
            cites: self.mode == ReplayMode::Free,
            mode: self.search.or(own.mode),
            k: self.k.or(own.k),
            ranking: own.ranking.filter(|_| reads(Part::Ranking)),
            graph: own.graph.filter(|_| reads(Part::Graph)),
            without,
            ..own
        }
    }

    /// The same error, where it is about what a chat request calls otherwise.
    fn named(&self, error: ApiError) -> ApiError {
        let error = if self.search.is_some() { error.renamed("rag.mode", "search") } else { error };
        if self.k.is_some() { error.renamed("rag.k", "k") } else { error }
    }
}

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
    /// Whether the answer of a free replay is another one than the trace's, to the letter; null in a forced one, and where
    /// the trace's episode was broken off and had no chance to answer.
    #[schema(required)]
    pub answer_changed: Option<bool>,
    /// The passages that support the answer of a free replay, in the order of its text; none in a forced one.
    pub citations: Vec<Cited>,
    /// Why a free replay ended; null in a forced one.
    #[schema(required)]
    pub finish_reason: Option<Reason>,
    /// The id of the trace that is kept of it; null where `store` does not ask for one.
    #[schema(required)]
    pub trace: Option<String>,
}

/// Runs the episode of a trace again and tells what is different.
///
/// It is run by the very policy that answered: one that was replaced, loaded again or unloaded since is refused with
/// 409, since nothing it says could be compared. Nothing is kept of the replay, unless `store` asks for it.
///
/// A free replay may be a counterfactual one: `without` leaves passages out of what is found, `search` and `k` search
/// otherwise, and `answer_changed` says what comes of it. What is left out is so before anything else sees it: each search
/// is made for as many passages more, and what is left is ranked from 1 again, for the policy, its evidence and its
/// citations. A triple goes when all passages that are named with it do. The search itself stays one in the whole index:
/// phrases and facts that only those passages tell of stay in the graph that is walked, and the places and masses in a
/// hit's `path` are those of that search.
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
    request.check()?;
    let kept = super::find(&state, &caller, id)?;
    let policy = kept.asked.policy(&state)?;
    let options = request.options(&kept.asked.options);
    let asked = (request.store == Some(true)).then(|| {
        let (owner, conversation) = (caller.key.clone(), kept.asked.conversation.clone());
        Asked::new(&state, owner, &policy, conversation, options.clone())
    });
    let episode = again(&state, &kept, &policy, options).await.map_err(|error| request.named(error))?;
    caller.lifetime.end_by(Instant::now() + episode.time() + state.config.connection.send);
    let replay = match request.mode {
        ReplayMode::Forced => forced(&state, &kept, episode).await?,
        ReplayMode::Free => free(&state, &kept, episode, asked).await?,
    };
    Ok(axum::Json(replay))
}

/// The same question to the same policy.
async fn again(
    state: &AppState,
    kept: &Arc<Kept>,
    policy: &Arc<Policy>,
    options: EpisodeOptions,
) -> Result<Episode, ApiError> {
    let schema = options.json.is_some() || !options.calls.is_empty();
    let (runtime, kept, policy) = (state.runtime.clone(), kept.clone(), policy.clone());
    let build = move || -> Result<Episode, ApiError> {
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
        answer_changed: None,
        citations: Vec::new(),
        finish_reason: None,
        trace: None,
    })
}

/// Runs the episode anew. What was `asked` is kept with what came of it, if anything is to be.
async fn free(state: &AppState, kept: &Kept, episode: Episode, asked: Option<Asked>) -> Result<Replay, ApiError> {
    let record = &kept.record;
    let (now, citations) = run(episode).await?;
    // An episode that was broken off had no chance to say the rest.
    let compared = match kept.end {
        End::Finished { .. } => now.tokens.as_slice(),
        _ => &now.tokens[..now.tokens.len().min(record.tokens.len())],
    };
    let differs = divergence(&record.tokens, compared, &state.runtime.tokenizer);
    let same = differs.as_ref().map_or(usize::MAX, |divergence| divergence.at);
    let until = |tokens: &[Token]| tokens.len().min(same);
    let answer_changed = match &kept.end {
        End::Finished { answer, .. } => Some(*answer != now.answer),
        _ => None,
    };
    let mut replay = Replay {
        id: kept.id().to_owned(),
        object: "trace.replay",
        mode: ReplayMode::Free,
        ids_equal: differs.is_none(),
        divergence: differs,
        logprobs: logprobs(&record.tokens[..until(&record.tokens)], &now.tokens[..until(&now.tokens)]),
        searches: searched(kept, &now.evidence),
        answer: now.answer.clone(),
        answer_changed,
        citations,
        finish_reason: Some(now.finish),
        trace: None,
    };
    if let Some(asked) = asked {
        let id = now.id.clone();
        keep(&state.traces, Kept::finished(asked, now));
        // One that is larger than all that may be kept is not.
        replay.trace = state.traces.get(&id).map(|_| id);
    }
    Ok(replay)
}

/// How what was found differs. An episode that was broken off had no chance to make the other searches.
fn searched(kept: &Kept, now: &[Found]) -> Vec<SearchDifference> {
    let mut differences = searches(&kept.record.evidence, now);
    if !matches!(kept.end, End::Finished { .. }) {
        differences.retain(|search| search.made != Made::Now);
    }
    differences
}

/// Runs an episode that nobody watches. What supports its answer is told at its end alone.
async fn run(episode: Episode) -> Result<(Trajectory, Vec<Cited>), AgentError> {
    let (sender, mut events) = mpsc::channel(64);
    let heard = async {
        let mut cited = Vec::new();
        while let Some(event) = events.recv().await {
            if let Event::Finished { citations, .. } = event {
                cited = citations;
            }
        }
        cited
    };
    let (trajectory, cited) = tokio::join!(episode.run(sender), heard);
    Ok((trajectory?, cited))
}
