//! `/v1/agent`: an episode with its typed trace.
//!
//! `whole`, `stream`: the two ways to answer · `resume`: taking a stream up again

pub mod resume;
mod stream;
mod whole;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Caller;
use super::body::{Json, Wire};
use super::chat::request::ResponseFormat;
use super::episodes;
use super::error::{ApiError, Refusals};
use super::follow::Events;
use super::knobs::{self, Knobs};
use super::rag::RagOptions;
use super::state::AppState;
use crate::agent::{Cited, Conversation, EpisodeOptions, Event, Message, Reason, Usage};

/// A question for an episode.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentRequest {
    /// What is asked.
    pub question: String,
    /// The policy that answers; the first one when not given.
    pub model: Option<String>,
    /// Whether to answer with server-sent events.
    pub stream: Option<bool>,
    /// Whether the stream may be taken up again when its connection is lost; only with `stream: true`.
    pub resumable: Option<bool>,
    /// Bounds the tokens sampled over the whole run.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f32>,
    /// Keeps the most probable tokens that have this mass together.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Makes sampling repeatable.
    pub seed: Option<i64>,
    /// How many alternatives to tell for each token; tells no log-probabilities when not given.
    #[schema(minimum = 0, maximum = 20)]
    pub logprobs: Option<u32>,
    /// What the answer must be: any text, a JSON object, or JSON after a schema.
    pub response_format: Option<ResponseFormat>,
    /// How to search. The trace is the answer here, so `trace` and `citations` can be nothing but true.
    pub rag: Option<RagOptions>,
}

impl Wire for AgentRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] =
        &[("rag.citations", &["true"]), ("rag.trace", &["true"])];
}

/// A finished episode.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentResponse {
    /// Names the episode.
    pub id: String,
    /// Always `agent.episode`.
    pub object: &'static str,
    /// When it was begun, in seconds since 1970.
    pub created: u64,
    /// The policy.
    pub model: String,
    /// What was asked.
    pub question: String,
    /// The answer, if there is one.
    #[schema(required)]
    pub answer: Option<String>,
    /// Why the policy gives none, where it says that it can give none.
    #[schema(required)]
    pub refusal: Option<String>,
    /// The passages that support it, in the order of its text.
    pub citations: Vec<Cited>,
    /// Why it ended: `stop`, `length`, `turns`, `time` or `refused`.
    pub finish_reason: Reason,
    /// What it took.
    pub usage: Usage,
    /// Turns of the policy.
    pub turns: usize,
    /// Searches made.
    pub searches: usize,
    /// Everything that happened, in order; deltas of one kind that follow each other are joined.
    pub trace: Vec<Event>,
}

/// Runs an episode and tells everything that happens.
///
/// With `stream: true` each event of the trace is sent as `id: <number>`, `event: <type>` and `data: {…}` with the same
/// `type`, the last one being `finished`; an error in the middle is sent as `event: error` and ends the stream.
///
/// The episode ends with its connection, unless it is `resumable`: then it goes on for a while (`--resume-seconds`), and
/// `GET /v1/agent/{id}` has the rest of its events. Its id stands in the first event, and its address in the header
/// `content-location`.
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
    Json(request): Json<AgentRequest>,
) -> Result<Response, ApiError> {
    let (streamed, resumable) = (request.stream.unwrap_or(false), request.resumable.unwrap_or(false));
    let (id, events) = begin(&state, &caller, request).await?;
    match (streamed, resumable) {
        (true, true) => resume::respond(&state, &caller, &id, events),
        (true, false) => Ok(stream::respond(&state, events)),
        (false, _) => Ok(axum::Json(whole::collect(events).await?).into_response()),
    }
}

/// The whole answer to a request that is not streamed, for whatever route was asked.
pub(super) async fn answer(
    state: &AppState,
    caller: &Caller,
    request: AgentRequest,
) -> Result<AgentResponse, ApiError> {
    let (_, events) = begin(state, caller, request).await?;
    whole::collect(events).await
}

/// Starts the episode that is asked for; its id, and what happens in it.
async fn begin(state: &AppState, caller: &Caller, request: AgentRequest) -> Result<(String, Events), ApiError> {
    let policy = state.policies.get_or_first(request.model.as_deref())?.policy.clone();
    state.check_index("rag.index", request.rag.as_ref().and_then(|rag| rag.index.as_deref()))?;
    let options = options(&request)?;
    let resumable = request.resumable.unwrap_or(false);
    if resumable && !request.stream.unwrap_or(false) {
        return Err(ApiError::invalid("resumable", "`resumable` needs `stream: true`"));
    }
    let id = options.id.clone().unwrap_or_default();
    let conversation = Conversation::from_messages(vec![Message::new(crate::agent::Role::User, request.question)])
        .map_err(|_| ApiError::invalid("question", "`question` is empty"))?;
    if resumable {
        state.streams.room(caller)?;
    }
    let started = episodes::start(state, caller, &policy, (conversation, options), 1).await;
    Ok((id, started.map_err(|error| error.renamed("messages", "question"))?))
}

fn options(request: &AgentRequest) -> Result<EpisodeOptions, ApiError> {
    let knobs = Knobs { temperature: request.temperature, top_p: request.top_p, ..Knobs::default() };
    let mut options = EpisodeOptions {
        id: Some(episodes::id("ep")),
        // Of the vocabulary only `logit_bias` would have to know.
        sampling: knobs.sampling(0)?,
        seed: episodes::seed(request.seed),
        max_tokens: knobs::most_tokens("max_tokens", request.max_tokens)?,
        logprobs: knobs::alternatives("logprobs", request.logprobs)?,
        cites: true,
        json: ResponseFormat::shape(request.response_format.clone())?,
        ..EpisodeOptions::default()
    };
    request.rag.clone().unwrap_or_default().apply(&mut options)?;
    Ok(options)
}
