//! `/v1/responses`: OpenAI's Responses interface on top of episodes.
//!
//! | file | content |
//! |---|---|
//! | `request`, `input`, `tool`, `function_tool`, `format`, `show` | request types and their options |
//! | `parsed_item`, `chat_history`, `references` | from the items of an input to the messages of a conversation |
//! | `chain_limits` | limits of the messages that a response continues |
//! | `plan` | validated requests |
//! | `object`, `item`, `attributes`, `event` | response types |
//! | `response_builder`, `generation` | from the events of an episode to items and events |
//! | `whole`, `stream`, `background` | the three kinds of responses |
//! | `entry`, `log` | responses in progress |
//! | `store`, `stored` | stored responses |
//! | `sealed` | sealed reasoning |
//! | `input_tokens` | counts of tokens without a response |
//! | `retrieve`, `input_items`, `cancel`, `delete` | the routes of one response |

pub mod attributes;
mod background;
pub(super) mod cancel;
mod chain_limits;
pub(super) mod chat_history;
pub mod delete;
mod entry;
pub mod event;
pub mod format;
pub mod function_tool;
mod generation;
pub mod input;
pub mod input_items;
pub mod input_tokens;
pub mod item;
mod log;
pub mod object;
pub(super) mod parsed_item;
mod plan;
#[cfg(test)]
mod property;
mod references;
pub mod request;
mod response_builder;
pub(super) mod retrieve;
mod sealed;
mod show;
mod store;
mod stored;
mod stream;
pub mod tool;
mod whole;

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::auth::Caller;
use super::body::JsonBody;
use super::conversations;
use super::episodes::{self, EpisodeRequest};
use super::error::{ApiError, Refusals};
use super::state::AppState;
use chat_history::ChatHistory;
use entry::ResponseEntry;
use event::ResponseEvent;
use object::ResponseObject;
use plan::{ResponsePlan, of_input};
use request::{ResponsesRequest, Truncation};

pub use store::Responses;

/// Answers a question, or continues a conversation.
///
/// The policy thinks, searches and answers. The output holds one `reasoning` item per turn, one `file_search_call` per
/// search, and a message with the answer and citations of the passages that support it. A policy may call functions of
/// the client; the output then holds `function_call` items, and the next request sends their results. With `stream: true` the
/// response is a stream of events that ends with `response.completed`, `response.incomplete` or `response.failed`. With
/// `background: true` the request returns at once while the response is generated; it can be fetched, followed and
/// canceled by its ID.
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
    JsonBody(request): JsonBody<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let (plan, episode_request) = planned(&state, &caller, request).await?;
    let sealer = if plan.show.sealed { Some(state.responses.seals.sealer(&caller).await?) } else { None };
    if plan.object.background {
        // Checked before the episode starts, so a refusal costs no work.
        state.responses.check_room(&caller)?;
    }
    let started = episodes::start(&plan.state, &caller, &plan.policy, episode_request, 1).await;
    let events = started.map_err(of_input)?;
    let entry = ResponseEntry::new(&plan, &caller, sealer);
    if plan.object.background {
        background::start(&state, &caller, &entry, events).await?;
        return Ok(match entry.log.clone() {
            Some(log) if plan.stream => stream::send(&state, entry.builder.clone(), log.follow(0)),
            _ => axum::Json(entry.shown(plan.show)).into_response(),
        });
    }
    if plan.stream {
        return Ok(stream::respond(&state, entry, events));
    }
    whole::collect(&state, &entry, events).await
}

/// Validates a request, after resolving the references in its input and loading the messages that it continues.
async fn planned(
    state: &AppState,
    caller: &Caller,
    mut request: ResponsesRequest,
) -> Result<(ResponsePlan, EpisodeRequest), ApiError> {
    state.responses.seals.check(caller, &request.input).await?;
    references::resolve(state, caller, &mut request.input).await?;
    let previous = continued(state, caller, &request).await?;
    ResponsePlan::new(state, caller, request, previous).await
}

/// Returns the messages that a request continues: those of a response, or of a conversation.
async fn continued(state: &AppState, caller: &Caller, request: &ResponsesRequest) -> Result<ChatHistory, ApiError> {
    match (&request.previous_response_id, &request.conversation) {
        (Some(_), Some(_)) => {
            let message = "`conversation` and `previous_response_id` exclude each other: give one of them";
            Err(ApiError::invalid("conversation", message))
        }
        (Some(id), None) => {
            let truncates = request.truncation == Some(Truncation::Auto);
            state.responses.conversation(id, caller).await?.limited(truncates)
        }
        (None, Some(conversation)) => conversations::messages(state, caller, conversation.id()).await,
        (None, None) => Ok(ChatHistory::default()),
    }
}
