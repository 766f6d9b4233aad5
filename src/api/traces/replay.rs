//! `/v1/traces/{id}/replay`: runs an episode again and compares it with its trace.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;
use utoipa::ToSchema;
use waymark_agent::{
    AgentError, Cited, EpisodeEnd, EpisodeOptions, Event, MAX_WITHOUT, Policy, SearchRecord, Trajectory,
};
use waymark_engine::{Origin, Token};
use waymark_index::{MAX_K, Mode, SearchOptions};

use super::difference::{
    LogprobDifference, SearchDifference, SearchSide, TokenDivergence, divergence, logprobs, searches,
};
use super::stored_trace::{StoredTrace, TraceEnd, TraceRequest};
use crate::api::auth::{Accounts, Caller};
use crate::api::blocking::run_blocking;
use crate::api::body::{JsonBody, WireRequest, within};
use crate::api::episodes::{self, ServedEpisode, ServedRuntime};
use crate::api::error::{ApiError, ErrorBody, Refusals};
use crate::api::follow::EventTokens;
use crate::api::indexes::INDEX;
use crate::api::path_param::PathParam;
use crate::api::state::AppState;

/// Options of a replay. All but `mode` are for free replays, and refused in forced ones.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// Kind of replay.
    pub mode: ReplayMode,
    /// IDs of passages to exclude from search results, in addition to those excluded in the trace's own searches; at
    /// most 64 together. Unknown IDs are allowed. A passage found by an earlier episode that this one continues is
    /// refused, because it is in the prompt.
    #[schema(min_items = 1, max_items = 64)]
    pub without: Option<Vec<String>>,
    /// Kind of search, overriding the trace's request and the policy's choice: `passage`, `graph` or `hybrid`; also
    /// `triples`, `kag` and `hypergraph` if the policy's protocol can present their results.
    #[schema(value_type = Option<String>)]
    pub search: Option<Mode>,
    /// Number of passages per search, overriding the trace's request.
    #[schema(minimum = 1, maximum = 200)]
    pub k: Option<usize>,
    /// If `true`, a trace of the replay is stored (`/v1/traces`), and replays of that trace use the same search
    /// options. Defaults to `false`.
    pub store: Option<bool>,
}

impl WireRequest for ReplayRequest {}

impl ReplayRequest {
    /// Checks the options. Errors name the field.
    fn check(&self) -> Result<(), ApiError> {
        let given = [
            ("without", self.without.is_some()),
            ("search", self.search.is_some()),
            ("k", self.k.is_some()),
            // `store: false` asks for what a forced replay does anyway.
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

    /// Returns the options of the trace's episode, overridden by those of the replay.
    fn options(&self, own: &EpisodeOptions) -> EpisodeOptions {
        let own = own.clone();
        let mut without = own.without;
        for id in self.without.iter().flatten() {
            if !without.contains(id) {
                without.push(id.clone());
            }
        }
        // Search options of the trace's request are dropped if the new mode does not use them.
        let search = match self.search {
            Some(mode) => own.search.used_in(mode),
            None => own.search,
        };
        EpisodeOptions {
            id: (self.store == Some(true)).then(|| episodes::id("replay")),
            // A forced replay has no answer of its own to cite for.
            cites: self.mode == ReplayMode::Free,
            search: SearchOptions { mode: self.search, k: self.k, ..SearchOptions::default() }.or(&search),
            without,
            ..own
        }
    }

    /// Renames the fields of an error from those of a chat request to those of a replay.
    fn named(&self, error: ApiError) -> ApiError {
        let error = if self.search.is_some() { error.renamed("rag.mode", "search") } else { error };
        if self.k.is_some() { error.renamed("rag.k", "k") } else { error }
    }
}

/// Kind of replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayMode {
    /// Along the recorded tokens: each one is computed and scored again, and none is sampled. Searches are made again
    /// but do not change any token.
    Forced,
    /// Sampled again, with the same question, options and seed.
    Free,
}

/// Result of a replay.
#[derive(Debug, Serialize, ToSchema)]
pub struct Replay {
    /// ID of the trace.
    pub id: String,
    /// Always `trace.replay`.
    pub object: &'static str,
    /// Kind of replay.
    pub mode: ReplayMode,
    /// If `true`, all token IDs are equal: those of the prompt, which is encoded again, and all that follow. If the
    /// trace was cut off, only its length is compared.
    pub ids_equal: bool,
    /// First token that differs.
    #[schema(required)]
    pub divergence: Option<TokenDivergence>,
    /// Differences of the log-probabilities of sampled tokens, up to the divergence.
    pub logprobs: LogprobDifference,
    /// Differences between the search results, search by search, without cached searches. In a free replay the searches
    /// are compared pairwise up to the first one with a different query; later ones are listed separately.
    pub searches: Vec<SearchDifference>,
    /// Answer of a free replay. Null in a forced one.
    #[schema(required)]
    pub answer: Option<String>,
    /// If `true`, the answer of a free replay differs from that of the trace in any character. Null in a forced replay,
    /// and if the trace was cut off before it could hold an answer.
    #[schema(required)]
    pub answer_changed: Option<bool>,
    /// Passages that support the answer of a free replay, in the order of its text. Empty in a forced one.
    pub citations: Vec<Cited>,
    /// Reason a free replay ended. Null in a forced one.
    #[schema(required)]
    pub finish_reason: Option<EpisodeEnd>,
    /// ID of the stored trace of the replay. Null unless `store` is set.
    #[schema(required)]
    pub trace: Option<String>,
}

/// Runs the episode of a trace again and reports the differences.
///
/// The replay uses the policy object that answered: if it was replaced, reloaded or unloaded since, the request is
/// refused with 409, because a replay would not be comparable. The replay is not stored unless `store` is set.
///
/// A free replay can be counterfactual: `without` excludes passages from search results, `search` and `k` change the
/// searches, and `answer_changed` reports the effect. Excluded passages are removed before anything else sees the
/// results: each search asks for that many more passages, and the remaining ones are ranked from 1 again, for the
/// policy, its evidence and its citations. A triple is removed if all its passages are. The search itself still runs on
/// the whole index: phrases and facts that occur only in excluded passages stay in the graph, and the ranks and masses
/// in a hit's `path` are those of that search. If the episode continues an earlier one, the options do not change the
/// searches of the earlier one, whose evidence is in the prompt.
#[utoipa::path(post, path = "/v1/traces/{id}/replay", operation_id = "replayTrace", tag = "traces",
    params(("id" = String, Path, description = "ID of the episode, completion or response")),
    request_body = ReplayRequest,
    responses(
        (status = 200, description = "the differences", body = Replay),
        (status = 409, description = "the policy that answered is no longer served", body = ErrorBody),
        Refusals,
    ))]
pub(in crate::api) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    JsonBody(request): JsonBody<ReplayRequest>,
) -> Result<axum::Json<Replay>, ApiError> {
    request.check()?;
    let kept = super::find_recent(&state, &caller, &id).await?;
    let policy = kept.asked.policy(&state)?;
    // Selected by name even if it is the default index, because the default of the key may have changed.
    let state = match policy.searches() {
        true => state.of_index(&caller, "id", Some(kept.asked.index.as_deref().unwrap_or(INDEX)))?,
        false => state.for_caller(&caller),
    };
    let options = request.options(&kept.asked.options);
    let asked = (request.store == Some(true)).then(|| {
        let conversation = kept.asked.conversation.clone();
        TraceRequest::new(&state, caller.owner, &policy, conversation, options.clone())
    });
    let episode = again(&state, &caller, &kept, &policy, options).await.map_err(|error| request.named(error))?;
    caller.accounts.count_tokens(episode.prompt_tokens());
    caller.lifetime.end_by(Instant::now() + episode.time() + state.config.connection.send);
    let replay = match request.mode {
        ReplayMode::Forced => {
            caller.accounts.count_tokens(kept.record.tokens.len().saturating_sub(kept.record.prompt_tokens));
            forced(&state, &kept, episode).await?
        }
        ReplayMode::Free => free(&state, &caller.accounts, &kept, episode, asked).await?,
    };
    Ok(axum::Json(replay))
}

/// Builds an episode with the same question and policy.
async fn again(
    state: &AppState,
    caller: &Caller,
    kept: &Arc<StoredTrace>,
    policy: &Arc<Policy>,
    options: EpisodeOptions,
) -> Result<ServedEpisode, ApiError> {
    // Given IDs are not encoded, and need no memory for that.
    let schema = options.compiles(policy, &kept.asked.conversation);
    let bytes = if options.prompt.is_some() { 0 } else { kept.asked.conversation.bytes() };
    let share = state.admit_text(caller, bytes).await?;
    let runtime = state.runtime.clone();
    let kept = kept.clone();
    let policy = policy.clone();
    let build = move |runtime: &ServedRuntime| -> Result<ServedEpisode, ApiError> {
        // Held until the prompt is encoded, even if the request is dropped.
        let _held = share;
        Ok(ServedEpisode::new(runtime, &policy, kept.asked.conversation.clone(), options)?)
    };
    match schema {
        // The schema is compiled again, which takes as long as the first time.
        true => episodes::compile(state, caller, build).await,
        false => run_blocking(move || build(&runtime)).await,
    }
}

async fn forced(state: &AppState, kept: &StoredTrace, episode: ServedEpisode) -> Result<Replay, ApiError> {
    let record = &kept.record;
    let forced = episode.force(&record.tokens, &record.evidence).await?;
    // Only the IDs of the prompt can differ, because the question is encoded again; all others are forced.
    let prompt = forced.prompt.iter().map(|&id| Token::given(id, Origin::Prompt, false));
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

/// Runs the episode again. If `asked` is given, stores the trace of the replay under it.
async fn free(
    state: &AppState,
    accounts: &Accounts,
    kept: &StoredTrace,
    episode: ServedEpisode,
    asked: Option<TraceRequest>,
) -> Result<Replay, ApiError> {
    let record = &kept.record;
    let (now, citations) = run(episode, accounts).await?;
    // If the trace was cut off, the replay's tokens beyond its length are not compared.
    let compared = match kept.end {
        TraceEnd::Finished { .. } => now.tokens.as_slice(),
        _ => &now.tokens[..now.tokens.len().min(record.tokens.len())],
    };
    let differs = divergence(&record.tokens, compared, &state.runtime.tokenizer);
    // Log-probabilities compare only where both episodes have the same tokens before them.
    let same = differs.as_ref().map_or(usize::MAX, |divergence| divergence.at);
    let until = |tokens: &[Token]| tokens.len().min(same);
    let answer_changed = match &kept.end {
        TraceEnd::Finished { answer, .. } => Some(*answer != now.answer),
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
        state.traces.keep(StoredTrace::finished(asked, now));
        // A trace larger than the whole store is not stored.
        replay.trace = state.traces.holds(&id).then_some(id);
    }
    Ok(replay)
}

/// Compares the search results. If the trace was cut off, searches made only by the replay are left out.
fn searched(kept: &StoredTrace, now: &[SearchRecord]) -> Vec<SearchDifference> {
    let mut differences = searches(&kept.record.evidence, now);
    if !matches!(kept.end, TraceEnd::Finished { .. }) {
        differences.retain(|search| search.made != SearchSide::Now);
    }
    differences
}

/// Runs an episode whose events nobody reads, and counts its tokens. Only its last event holds the citations.
async fn run(episode: ServedEpisode, accounts: &Accounts) -> Result<(Trajectory, Vec<Cited>), AgentError> {
    let (sender, mut events) = mpsc::channel(64);
    let heard = async {
        let mut cited = Vec::new();
        let mut tokens = EventTokens::default();
        while let Some(event) = events.recv().await {
            accounts.count_tokens(tokens.added_by(&event));
            if let Event::Finished { citations, .. } = event {
                cited = citations;
            }
        }
        cited
        // The events are read while the episode runs, because a full channel would block it.
    };
    let (trajectory, cited) = tokio::join!(episode.run(sender), heard);
    Ok((trajectory?, cited))
}
