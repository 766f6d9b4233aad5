//! `/v1/completions`: continues texts verbatim, without a chat template or a protocol.
//!
//! `request`, `completion`: wire types · `plan`: validation · `logprobs`: tokens in this interface's format · `stream`,
//! `whole`: the two kinds of responses.

pub mod completion;
mod logprobs;
mod plan;
pub mod request;
mod stream;
mod whole;

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::auth::Caller;
use super::body::JsonBody;
use super::chunks;
use super::episodes;
use super::error::{ApiError, Refusals};
use super::state::AppState;
use completion::{CompletionStreamItem, TextCompletion};
use plan::CompletionPlan;
use request::CompletionRequest;
use stream::CompletionWriter;

/// Continues texts.
///
/// The model continues each prompt with the adapter of the named policy; it neither thinks nor searches. Text cannot
/// spell control tokens: to send some, use token IDs, such as those of `/tokenize`. With `stream: true` the response is
/// a stream of `data:` lines that ends with `data: [DONE]`. Each answer has its own trace (`/v1/traces`): the first
/// under the completion's ID, the second with the suffix `-1`, and so on.
#[utoipa::path(post, path = "/v1/completions", operation_id = "createCompletion", tag = "inference", request_body = CompletionRequest, responses(
    (status = 200, description = "the continuations", content(
        (TextCompletion = "application/json"),
        (CompletionStreamItem = "text/event-stream"),
    )),
    Refusals,
))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<CompletionRequest>,
) -> Result<Response, ApiError> {
    let (plan, episode_requests) = CompletionPlan::new(&state, request)?;
    // Each prompt is a request of its own, and so is each answer beyond the first.
    caller.accounts.count_requests(episode_requests.len() * plan.n - 1)?;
    let started = episodes::start_all(&state, &caller, &plan.policy, episode_requests, plan.n).await;
    let events =
        started.map_err(|error| plan.of_form(error).renamed("messages", "prompt").renamed("rag.store", "store"))?;
    if plan.streams {
        return Ok(chunks::respond(&state, CompletionWriter::new(&plan), events));
    }
    Ok(axum::Json(whole::collect(plan, events, state.config.answer_bytes).await?).into_response())
}
