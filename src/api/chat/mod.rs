//! `/v1/chat/completions`: OpenAI's chat interface on top of episodes.
//!
//! `request`, `completion`, `tool`, `choice_fields`, `allowed_tools`: wire types · `check`, `messages`, `plan`:
//! validation · `piece`: from events to deltas · `stream`, `whole`: the two kinds of responses.

pub mod allowed_tools;
mod check;
mod choice_fields;
pub mod completion;
pub(super) mod messages;
mod piece;
mod plan;
pub mod request;
mod stream;
pub mod tool;
mod whole;

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::auth::Caller;
use super::body::JsonBody;
use super::chunks;
use super::episodes;
use super::error::{ApiError, Refusals};
use super::state::AppState;
use completion::{ChatCompletion, ChatStreamItem};
pub(super) use piece::logprob;
use plan::ChatPlan;
use request::ChatRequest;
use stream::ChatWriter;

/// Answers a conversation.
///
/// The policy thinks, searches and answers. Its reasoning is returned as `reasoning_content` and its answer as
/// `content`. With `rag.trace` the searches are returned as `rag`, and with `rag.citations` the passages that support
/// the answer follow at the end. A policy may call the client's `tools`; the answer then has `tool_calls` and the
/// finish reason `tool_calls`, and continues with the result in the next request. With `stream: true` the response is a
/// stream of `data:` lines, one chunk each, that ends with `data: [DONE]`. An error in the middle is sent as
/// `{"error": …}` and ends the stream without `[DONE]`.
#[utoipa::path(post, path = "/v1/chat/completions", operation_id = "createChatCompletion", tag = "inference", request_body = ChatRequest, responses(
    (status = 200, description = "the answer", content(
        (ChatCompletion = "application/json"),
        (ChatStreamItem = "text/event-stream"),
    )),
    Refusals,
))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<ChatRequest>,
) -> Result<Response, ApiError> {
    let (plan, episode_request) = ChatPlan::new(&state, &caller, request).await?;
    // The gate has counted one request, for the first choice.
    caller.accounts.count_requests(plan.n - 1)?;
    let events = episodes::start(&plan.state, &caller, &plan.policy, episode_request, plan.n).await;
    let events = events.map_err(|error| plan.of_form(error))?;
    if plan.stream {
        return Ok(chunks::respond(&state, ChatWriter::new(&plan), events));
    }
    Ok(axum::Json(whole::collect(&plan, events, state.config.answer_bytes).await?).into_response())
}

/// Alias of `/v1/chat/completions`.
#[utoipa::path(post, path = "/v1/chat", operation_id = "createChat", tag = "inference", request_body = ChatRequest, responses(
    (status = 200, description = "the answer", content(
        (ChatCompletion = "application/json"),
        (ChatStreamItem = "text/event-stream"),
    )),
    Refusals,
))]
pub(super) async fn create_short(
    state: State<AppState>,
    caller: Caller,
    request: JsonBody<ChatRequest>,
) -> Result<Response, ApiError> {
    create(state, caller, request).await
}
