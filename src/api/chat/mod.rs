//! `/v1/chat/completions`: OpenAI's chat interface over episodes.
//!
//! `request`, `completion`, `tool`: the wire types · `check`, `messages`, `plan`: what a request means · `piece`: from events to
//! deltas · `stream`, `whole`: the two ways to answer.

mod check;
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
use super::body::Json;
use super::chunks;
use super::episodes;
use super::error::{ApiError, Refusals};
use super::state::AppState;
use completion::{ChatCompletion, ChatStreamItem};
pub(super) use piece::logprob;
use plan::Plan;
use request::ChatRequest;
use stream::Writer;

/// Answers a conversation.
///
/// The policy thinks, searches and answers: reasoning comes as `reasoning_content`, the answer as `content`, and what was
/// searched as `rag` when `rag.trace` is set, as are at the end the passages that support the answer when `rag.citations` is.
/// The policy `plain` may call `tools` of the client's: `tool_calls` with the reason `tool_calls`.
/// With `stream: true` the answer is a stream of `data:` lines, each one a chunk, that ends with `data: [DONE]`; an error in
/// the middle is sent as `{"error": …}` and ends it without.
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
    Json(request): Json<ChatRequest>,
) -> Result<Response, ApiError> {
    let (plan, question) = Plan::new(&state, request)?;
    let events = episodes::start(&state, &caller, &plan.policy, question, plan.n).await?;
    if plan.stream {
        return Ok(chunks::respond(&state, Writer::new(&plan), events));
    }
    Ok(axum::Json(whole::collect(&plan, events).await?).into_response())
}

/// The same as `/v1/chat/completions`.
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
    request: Json<ChatRequest>,
) -> Result<Response, ApiError> {
    create(state, caller, request).await
}
