//! `POST /mcp`: the Model Context Protocol over HTTP, so that its clients can search the index and ask the policies.
//!
//! | file | what it holds |
//! |---|---|
//! | `client` | what the headers say of a client, and whether it may come in |
//! | `message` | what is sent, and what is sent back: JSON-RPC |
//! | `tool` | the tools that are offered, and calling them |
//! | `search`, `ask` | one tool each |
//! | `shape` | what tools take and give, as JSON Schema |
//!
//! No state is kept between requests: there is no session, nothing is sent that was not asked for, and every answer is
//! one JSON document. So `GET` and `DELETE` are not there (405), and `notifications/cancelled`, which names a request by
//! an id that other clients use as well, ends nothing: a request ends with its connection.

mod ask;
mod client;
mod message;
mod search;
mod shape;
mod tool;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::auth::Caller;
use super::body::Raw;
use super::error::{ApiError, ErrorBody};
use super::state::AppState;
use client::Client;
use message::{Fault, McpMessage, McpResponse, Outcome};
use tool::{Call, Tool};

/// A message of the Model Context Protocol, revisions 2025-06-18 and 2025-03-26.
///
/// Its tools are `search`, where the server has an index, and `ask`, where it has a policy. One message at a time:
/// batches are refused, in the older revision too. A notification is answered with 202. What is wrong with a message is
/// told in JSON-RPC's own form, with the error object of the other routes under `error.data`; what goes wrong in a tool
/// is a result with `isError`. `GET` and `DELETE` are answered with 405: there are no sessions.
#[utoipa::path(post, path = "/mcp", operation_id = "mcp", tag = "inference", request_body = McpMessage,
    params(("MCP-Protocol-Version" = Option<String>, Header,
        description = "the revision that was agreed on; not looked at in `initialize`, where it is agreed on")),
    responses(
        (status = 200, description = "the result, or why there is none", body = McpResponse),
        (status = 202, description = "the notification was taken"),
        (status = 400, description = "this is no message, or one of a revision that is not spoken", body = McpResponse),
        (status = 403, description = "Pages of this origin may not use the server.", body = ErrorBody),
        (status = 406, description = "JSON is not accepted", body = ErrorBody),
        (status = 408, description = "the body took too long to arrive", body = ErrorBody),
        (status = 413, description = "the body is too large", body = ErrorBody),
        (status = 415, description = "the body is not declared as JSON", body = ErrorBody),
        (status = 500, description = "something broke on the way to the answer", body = ErrorBody),
        (status = 503, description = "the server is shutting down", body = ErrorBody),
    ))]
pub(super) async fn receive(State(state): State<AppState>, caller: Caller, client: Client, Raw(body): Raw) -> Response {
    let message = match McpMessage::read(&body) {
        Ok(message) => message,
        Err(fault) => return fault.into_response(),
    };
    let McpMessage { id, method, params, .. } = message;
    // What is spoken is agreed on by the body of `initialize`, whatever its headers say.
    let spoken = if method == "initialize" { Ok(()) } else { client.check_version() };
    if let Err(fault) = spoken {
        return fault.to(id).into_response();
    }
    let Some(id) = id else { return StatusCode::ACCEPTED.into_response() };
    match answer(&state, &caller, &method, params).await {
        Ok(outcome) => outcome.to(id),
        Err(fault) => fault.to(Some(id)).into_response(),
    }
}

/// The result of a request.
async fn answer(state: &AppState, caller: &Caller, method: &str, params: Option<Value>) -> Result<Outcome, Fault> {
    match method {
        "initialize" => initialize(state, params),
        "ping" => {
            message::params::<Nothing>(params)?;
            Ok(Outcome::Told(json!({})))
        }
        "tools/list" => {
            let Page { cursor, .. } = message::params(params)?;
            if cursor.is_some() {
                let message = "`cursor`: there is one page, and no cursor leads to another";
                return Err(Fault::params(ApiError::invalid("cursor", message)));
            }
            let tools = tool::list(state).map_err(Fault::internal)?;
            Ok(Outcome::Told(json!({"tools": tools})))
        }
        "tools/call" => {
            let call: Call = message::params(params)?;
            Ok(Outcome::Called(tool::call(state, caller, call).await?))
        }
        _ => Err(Fault::method(method)),
    }
}

/// What every request may have beside its own parameters, and nothing more.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {
    _meta: Option<IgnoredAny>,
}

/// Which page of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    cursor: Option<String>,
    _meta: Option<IgnoredAny>,
}

/// What a client says of itself first. Newer revisions may say more, and are answered with an older one all the same:
/// what is not known is passed over, here alone.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hello {
    protocol_version: String,
}

fn initialize(state: &AppState, params: Option<Value>) -> Result<Outcome, Fault> {
    let Hello { protocol_version } = message::params(params)?;
    let offered: Vec<&str> = Tool::offered(state).into_iter().map(Tool::purpose).collect();
    let instructions = match &offered[..] {
        [] => "Nothing is served here yet.".to_owned(),
        offered => format!("To be asked for what its corpus says: {}.", offered.join("; ")),
    };
    Ok(Outcome::Told(json!({
        "protocolVersion": client::agree(&protocol_version),
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "waymark", "title": "Waymark", "version": env!("CARGO_PKG_VERSION")},
        "instructions": instructions,
    })))
}
