//! `/v1/agent`: runs one episode and returns the answer together with its typed trace.
//!
//! `history`: messages before the question · `whole`: JSON responses · `stream`: event streams · `resume`: reconnecting
//! to a stream

pub mod history;
pub mod resume;
mod stream;
mod whole;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_agent::{Cited, EpisodeEnd, EpisodeOptions, Event, Usage};
use waymark_index::AnswerCut;
use waymark_models::grammar::OutputForm;

use super::auth::Caller;
use super::body::{JsonBody, WireRequest};
use super::chat::request::ResponseFormat;
use super::episodes::{self, EpisodeRequest};
use super::error::{ApiError, Refusals};
use super::follow::Events;
use super::rag::{self, RagOptions};
use super::sampling_params::{self, RequestSampling};
use super::state::AppState;
use history::HistoryMessage;

/// Request body of `POST /v1/agent`: one question for an episode.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentRequest {
    /// Question to answer.
    pub question: String,
    /// Messages of the conversation before the question, oldest first.
    pub history: Option<Vec<HistoryMessage>>,
    /// Name of the policy that answers. Defaults to the first loaded policy.
    pub model: Option<String>,
    /// If `true`, the response is a stream of server-sent events.
    pub stream: Option<bool>,
    /// If `true`, a client that lost its connection can resume the stream. Requires `stream: true`.
    pub resumable: Option<bool>,
    /// Maximum number of completion tokens of the whole episode, forced ones included.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f32>,
    /// Nucleus sampling: keeps the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Seed of the random number generator. The same seed gives the same samples.
    pub seed: Option<i64>,
    /// Number of most likely tokens to return at each position. If absent, no log-probabilities are returned.
    #[schema(minimum = 0, maximum = 20)]
    pub logprobs: Option<u32>,
    /// Format of the answer: any text, a JSON object, or JSON that follows a schema.
    pub response_format: Option<ResponseFormat>,
    /// Search options. The trace is always part of this response, so `trace` and `citations` cannot be `false`.
    pub rag: Option<RagOptions>,
}

impl WireRequest for AgentRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] =
        &[("rag.citations", &["true"]), ("rag.trace", &["true"])];
}

/// Result of a finished episode.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentResponse {
    /// ID of the episode.
    pub id: String,
    /// Always `agent.episode`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Name of the policy that answered.
    pub model: String,
    /// Question that was answered.
    pub question: String,
    /// Final answer, if there is one.
    #[schema(required)]
    pub answer: Option<String>,
    /// Reason the policy gives for having no answer, if it refuses.
    #[schema(required)]
    pub refusal: Option<String>,
    /// Passages that support the answer, in the order of its text.
    pub citations: Vec<Cited>,
    /// Reason the episode ended: `stop`, `length`, `turns`, `time` or `refused`.
    pub finish_reason: EpisodeEnd,
    /// Tokens used by the episode.
    pub usage: Usage,
    /// Number of turns of the policy.
    pub turns: usize,
    /// Number of searches.
    pub searches: usize,
    /// All events in order. Consecutive deltas of the same kind are joined.
    pub trace: Vec<Event>,
    /// Tokens whose log-probabilities are missing in the trace because the answer is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<AnswerCut>,
}

/// Runs an episode and returns its answer and trace.
///
/// With `stream: true` the response is an event stream. Each event of the trace is sent as `id: <number>`, `event:
/// <type>` and `data: {…}` with the same `type`; the last event is `finished`. An error is sent as `event: error` and
/// ends the stream.
///
/// The episode is canceled when its connection closes, unless it is `resumable`: then it continues for a while
/// (`--resume-seconds`), and `GET /v1/agent/{id}` returns the remaining events. The first event holds the episode's ID,
/// and the header `content-location` its address.
#[utoipa::path(post, path = "/v1/agent", operation_id = "runAgent", tag = "inference", request_body = AgentRequest, responses(
    (status = 200, description = "the answer", content(
        (AgentResponse = "application/json"),
        (Event = "text/event-stream"),
    )),
    Refusals,
))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<AgentRequest>,
) -> Result<Response, ApiError> {
    let streamed = request.stream.unwrap_or(false);
    let resumable = request.resumable.unwrap_or(false);
    let (id, events) = begin(&state, &caller, request).await?;
    match (streamed, resumable) {
        (true, true) => resume::respond(&state, &caller, &id, events),
        (true, false) => Ok(stream::respond(&state, events)),
        (false, _) => Ok(axum::Json(whole::collect(events, state.config.answer_bytes).await?).into_response()),
    }
}

/// Answers `request` in one piece, ignoring its `stream` option. Used by other routes.
pub(super) async fn answer(
    state: &AppState,
    caller: &Caller,
    request: AgentRequest,
) -> Result<AgentResponse, ApiError> {
    let (_, events) = begin(state, caller, request).await?;
    whole::collect(events, state.config.answer_bytes).await
}

/// Starts the requested episode and returns its ID and its events.
async fn begin(state: &AppState, caller: &Caller, request: AgentRequest) -> Result<(String, Events), ApiError> {
    let policy = state.policy_or_first(request.model.as_deref())?.policy.clone();
    let named = request.rag.as_ref().and_then(|rag| rag.rest.index.as_deref());
    let state = &state.of_request(caller, "rag.index", named, &policy)?;
    let options = options(&request)?;
    let resumable = request.resumable.unwrap_or(false);
    if resumable && !request.stream.unwrap_or(false) {
        return Err(ApiError::invalid("resumable", "`resumable` needs `stream: true`"));
    }
    let id = options.id.clone().unwrap_or_default();
    let conversation = history::conversation(request.history.unwrap_or_default(), request.question)?;
    if resumable {
        // Checked before the episode starts, so a refusal costs no work.
        state.streams.check_room(caller)?;
    }
    let episode_request = EpisodeRequest { conversation, options };
    let started = episodes::start(state, caller, &policy, episode_request, 1).await;
    // The conversation was built from `question`, so errors must name that field.
    Ok((id, started.map_err(|error| error.renamed("messages", "question"))?))
}

fn options(request: &AgentRequest) -> Result<EpisodeOptions, ApiError> {
    let params =
        RequestSampling { temperature: request.temperature, top_p: request.top_p, ..RequestSampling::default() };
    let mut options = EpisodeOptions {
        id: Some(episodes::id("ep")),
        // A vocabulary of 0 is enough here: only `logit_bias`, which this route does not have, is checked against it.
        sampling: params.sampling(0)?,
        seed: episodes::seed(request.seed),
        max_tokens: sampling_params::most_tokens("max_tokens", request.max_tokens)?,
        logprobs: sampling_params::alternatives("logprobs", request.logprobs)?,
        cites: true,
        form: ResponseFormat::shape(request.response_format.clone())?.map(OutputForm::Json),
        ..EpisodeOptions::default()
    };
    rag::apply(&request.rag.clone().unwrap_or_default(), &mut options)?;
    Ok(options)
}
