//! `/v1/completions`: texts continued as they stand, without a template or a protocol.
//!
//! `request`, `completion`: the wire types · `plan`: what a request means · `logprobs`: tokens as this interface shows
//! them · `stream`, `whole`: the two ways to answer.

pub mod completion;
mod logprobs;
mod plan;
pub mod request;
mod stream;
mod whole;

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::auth::Caller;
use super::body::Json;
use super::chunks;
use super::episodes;
use super::error::{ApiError, Refusals};
use super::state::AppState;
use completion::{Completion, CompletionStreamItem};
use plan::Plan;
use request::CompletionRequest;
use stream::Writer;

/// Continues texts.
///
/// The model writes on after each prompt with the adapter of the policy that is named; it neither thinks nor searches.
/// Control tokens cannot be spelled in a text: send token ids, such as those of `/tokenize`, where they are wanted. With
/// `stream: true` the answer is a stream of `data:` lines that ends with `data: [DONE]`. Each answer has a trace of its own
/// (`/v1/traces`), by the completion's id; the second one's ends in `-1`, and so on.
#[utoipa::path(post, path = "/v1/completions", operation_id = "createCompletion", tag = "inference", request_body = CompletionRequest, responses(
    (status = 200, description = "the continuations", content(
        (Completion = "application/json"),
        (CompletionStreamItem = "text/event-stream"),
    )),
    Refusals,
))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    Json(request): Json<CompletionRequest>,
) -> Result<Response, ApiError> {
    let (plan, questions) = Plan::new(&state, request)?;
    let started = episodes::start_all(&state, &caller, &plan.policy, questions, plan.n).await;
    let events = started.map_err(|error| error.renamed("messages", "prompt").renamed("rag.store", "store"))?;
    if plan.streams {
        return Ok(chunks::respond(&state, Writer::new(&plan), events));
    }
    Ok(axum::Json(whole::collect(plan, events).await?).into_response())
}
