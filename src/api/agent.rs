//! `/v1/agent`: an episode with its typed trace.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Caller;
use super::body::{Json, Wire};
use super::episodes;
use super::error::{ApiError, Code, Refusals};
use super::follow::Events;
use super::rag::RagOptions;
use super::sse::{self, Frame};
use super::state::{AppState, now};
use crate::agent::{Conversation, EpisodeOptions, Event, Message, Reason, Sampling, Usage};

/// A question for an episode.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentRequest {
    /// What is asked.
    pub question: String,
    /// The policy that answers; the first one when not given.
    pub model: Option<String>,
    /// Whether to answer with server-sent events.
    pub stream: Option<bool>,
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
    /// How to search. `trace` has no meaning here: the trace is the answer.
    pub rag: Option<RagOptions>,
}

impl Wire for AgentRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[];
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
    /// Why it ended: `stop`, `length`, `turns` or `time`.
    #[schema(value_type = String)]
    pub finish_reason: Reason,
    /// What it took, in tokens.
    #[schema(value_type = Object)]
    pub usage: Usage,
    /// Turns of the policy.
    pub turns: usize,
    /// Searches made.
    pub searches: usize,
    /// Everything that happened, in order; deltas of one kind that follow each other are joined.
    #[schema(value_type = Vec<Object>)]
    pub trace: Vec<Event>,
}

/// Runs an episode and tells everything that happens.
///
/// With `stream: true` each event of the trace is sent as `event: <type>` and `data: {…}` with the same `type`, the last
/// one being `finished`; an error in the middle is sent as `event: error` and ends the stream.
#[utoipa::path(post, path = "/v1/agent", operation_id = "runAgent", tag = "inference", request_body = AgentRequest, responses(
    (status = 200, description = "the answer", content(
        (AgentResponse = "application/json"),
        (String = "text/event-stream"),
    )),
    Refusals,
))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    Json(request): Json<AgentRequest>,
) -> Result<Response, ApiError> {
    let policy = state.policies.get_or_first(request.model.as_deref())?.policy.clone();
    state.check_index("rag.index", request.rag.as_ref().and_then(|rag| rag.index.as_deref()))?;
    let options = options(&request)?;
    let conversation = Conversation::from_messages(vec![Message::new(crate::agent::Role::User, request.question)])
        .map_err(|_| ApiError::invalid("question", "`question` is empty"))?;
    let started = episodes::start(&state, &caller, &policy, conversation, options, 1).await;
    // Here the messages have another name.
    let events = started.map_err(|error| match error.param.as_deref() {
        Some("messages") => error.with_param("question"),
        _ => error,
    })?;
    if request.stream.unwrap_or(false) {
        return Ok(respond(&state, events));
    }
    Ok(axum::Json(collect(events).await?).into_response())
}

fn options(request: &AgentRequest) -> Result<EpisodeOptions, ApiError> {
    let within = |param: &str, value: Option<f32>, high: f32| match value {
        Some(value) if !(0.0..=high).contains(&value) => {
            Err(ApiError::invalid(param, format!("`{param}` must be from 0 to {high}, not {value}")))
        }
        value => Ok(value),
    };
    if request.max_tokens == Some(0) {
        return Err(ApiError::invalid("max_tokens", "`max_tokens` must be at least 1"));
    }
    if request.logprobs.is_some_and(|top| top > 20) {
        return Err(ApiError::invalid("logprobs", "`logprobs` must be from 0 to 20"));
    }
    let mut options = EpisodeOptions {
        id: Some(episodes::id("ep")),
        sampling: Sampling {
            temperature: within("temperature", request.temperature, 2.0)?,
            top_p: within("top_p", request.top_p, 1.0)?,
            ..Sampling::default()
        },
        seed: episodes::seed(request.seed),
        max_tokens: request.max_tokens.map(|tokens| tokens as usize),
        logprobs: request.logprobs.map(|top| top as usize),
        ..EpisodeOptions::default()
    };
    request.rag.clone().unwrap_or_default().apply(&mut options)?;
    Ok(options)
}

/// The trace as it happens.
fn respond(state: &AppState, events: Events) -> Response {
    let frames = async_stream::stream! {
        let mut frame = Frame::default();
        let mut batches = events.ready_chunks(sse::READY);
        while let Some(batch) = batches.next().await {
            for (_, event) in batch {
                match event {
                    Ok(event) => frame.event(name(&event), &event),
                    Err(error) => frame.named_error(&error),
                }
            }
            yield frame.take();
        }
    };
    sse::respond(frames, state.config.ping, state.drain.clone(), Frame::named_error)
}

/// The event's `type`, as serde writes it.
fn name(event: &Event) -> &'static str {
    match event {
        Event::Started { .. } => "started",
        Event::TurnStarted { .. } => "turn_started",
        Event::Think { .. } => "think",
        Event::Query { .. } => "query",
        Event::Answer { .. } => "answer",
        Event::Text { .. } => "text",
        Event::SearchStarted { .. } => "search_started",
        Event::SearchFinished { .. } => "search_finished",
        Event::Observation { .. } => "observation",
        Event::Invalid { .. } => "invalid",
        Event::Budget { .. } => "budget",
        Event::Finished { .. } => "finished",
        Event::Failed { .. } => "failed",
    }
}

/// The trace once it is over.
async fn collect(mut events: Events) -> Result<AgentResponse, ApiError> {
    let created = now();
    let mut trace: Vec<Event> = Vec::new();
    while let Some((_, event)) = events.next().await {
        let event = event?;
        if !trace.last_mut().is_some_and(|last| join(last, &event)) {
            trace.push(event);
        }
    }
    let broken = || ApiError::new(Code::Internal, "the episode ended without a result");
    let Some(Event::Started { id, model, question, .. }) = trace.first().cloned() else { return Err(broken()) };
    let Some(Event::Finished { reason, answer, usage, turns, searches }) = trace.last().cloned() else {
        return Err(broken());
    };
    Ok(AgentResponse {
        id,
        object: "agent.episode",
        created,
        model,
        question,
        answer,
        finish_reason: reason,
        usage,
        turns,
        searches,
        trace,
    })
}

/// Appends a delta to one of its kind; false where the two do not belong together.
fn join(last: &mut Event, next: &Event) -> bool {
    let (text, tokens, more, more_tokens) = match (last, next) {
        (Event::Answer { text, tokens }, Event::Answer { text: more, tokens: rest }) => (text, tokens, more, rest),
        (Event::Think { turn, text, tokens }, Event::Think { turn: same, text: more, tokens: rest })
        | (Event::Query { turn, text, tokens }, Event::Query { turn: same, text: more, tokens: rest })
        | (Event::Text { turn, text, tokens }, Event::Text { turn: same, text: more, tokens: rest })
            if turn == same =>
        {
            (text, tokens, more, rest)
        }
        _ => return false,
    };
    text.push_str(more);
    tokens.extend(more_tokens.iter().cloned());
    true
}
