//! `/v1/responses`: OpenAI's Responses interface over episodes.
//!
//! | file | what it holds |
//! |---|---|
//! | `request`, `input`, `tool`, `format`, `show` | what is asked, and what it means |
//! | `plan` | a request that makes sense |
//! | `object`, `item`, `attributes`, `event` | what is answered |
//! | `draft`, `play` | from the trace of an episode to items and events |
//! | `whole`, `stream`, `background` | the three ways to answer |
//! | `entry`, `log`, `store` | what is kept |
//! | `retrieve`, `cancel`, `delete`, `id` | the routes of one response |

pub mod attributes;
mod background;
pub(super) mod cancel;
pub mod delete;
mod draft;
mod entry;
pub mod event;
pub mod format;
mod id;
pub mod input;
pub mod item;
mod log;
pub mod object;
mod plan;
mod play;
#[cfg(test)]
mod property;
pub mod request;
pub(super) mod retrieve;
mod show;
mod store;
mod stream;
pub mod tool;
mod whole;

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::auth::Caller;
use super::body::Json;
use super::episodes;
use super::error::{ApiError, Refusals};
use super::state::AppState;
use entry::Entry;
use event::ResponseEvent;
use object::ResponseObject;
use plan::{Plan, of_input};
use request::ResponsesRequest;

pub use store::Responses;

/// Answers a question, or goes on with a conversation.
///
/// The policy thinks, searches and answers: each turn's reasoning is an item of its own, each search a `file_search_call`,
/// and the answer a message with citations of the passages that support it. With `stream: true` the answer is a stream of
/// events that ends with `response.completed`, `response.incomplete` or `response.failed`. With `background: true` the
/// answer comes at once and the response is made on; it is fetched, followed and cancelled by its id.
#[utoipa::path(post, path = "/v1/responses", operation_id = "createResponse", tag = "inference", request_body = ResponsesRequest, responses(
    (status = 200, description = "the response", content(
        (ResponseObject = "application/json"),
        (ResponseEvent = "text/event-stream"),
    )),
    Refusals,
))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    Json(request): Json<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let continued = |id| state.responses.conversation(id, &caller);
    let previous = request.previous_response_id.as_deref().map(continued).transpose()?;
    let (plan, question) = Plan::new(&state, request, previous.unwrap_or_default())?;
    if plan.object.background {
        state.responses.room(&caller)?;
    }
    let started = episodes::start(&state, &caller, &plan.policy, question, 1).await;
    let events = started.map_err(of_input)?;
    let entry = Entry::new(&plan, &caller);
    if plan.object.background {
        background::start(&state, &caller, &entry, events)?;
        return Ok(match entry.log.clone() {
            Some(log) if plan.stream => stream::send(&state, entry.draft.clone(), log.follow(0)),
            _ => axum::Json(entry.shown(plan.show)).into_response(),
        });
    }
    if plan.stream {
        return Ok(stream::respond(&state, entry, events));
    }
    Ok(axum::Json(whole::collect(&state, &entry, events).await?).into_response())
}
