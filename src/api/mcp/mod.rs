//! `POST /mcp`: the Model Context Protocol over HTTP, with tools to search the index and to ask the policies.
//!
//! | file | content |
//! |---|---|
//! | `client` | checks of the client's headers |
//! | `message` | JSON-RPC requests and responses |
//! | `tool` | list of tools, and calls |
//! | `search`, `ask` | one tool each |
//! | `json_schema` | JSON schemas of tool inputs and outputs |
//!
//! The server is stateless: there are no sessions, it sends nothing unsolicited, and every response is one JSON
//! document. Hence `GET` and `DELETE` are refused (405), and `notifications/cancelled` has no effect, because it names
//! a request by an ID that other clients may use as well: a request is canceled by closing its connection.

mod ask;
mod client;
mod json_schema;
mod message;
mod search;
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
use client::McpClient;
use message::{McpFault, McpMessage, McpResponse, MethodResult};
use tool::{CallParams, McpTool};

/// Handles a message of the Model Context Protocol, revisions 2025-06-18 and 2025-03-26.
///
/// The tools are `search`, if the server has an index, and `ask`, if it has a policy. Batches are refused, even in the
/// older revision. A notification is answered with 202. An invalid message gets a JSON-RPC error, which holds the error
/// object of the other routes under `error.data`; a failed tool call gets a result with `isError`. `GET` and `DELETE`
/// are answered with 405, because there are no sessions.
#[utoipa::path(post, path = "/mcp", operation_id = "mcp", tag = "inference", request_body = McpMessage,
    params(("MCP-Protocol-Version" = Option<String>, Header,
        description = "negotiated revision; ignored in `initialize`, which negotiates it")),
    responses(
        (status = 200, description = "the result or the error", body = McpResponse),
        (status = 202, description = "the notification was accepted"),
        (status = 400, description = "the body is not a valid message, or its revision is not supported", body = McpResponse),
        (status = 403, description = "Pages of this origin may not use the server.", body = ErrorBody),
        (status = 406, description = "JSON is not accepted", body = ErrorBody),
        (status = 408, description = "the body took too long to arrive", body = ErrorBody),
        (status = 413, description = "the body is too large", body = ErrorBody),
        (status = 415, description = "the body is not declared as JSON", body = ErrorBody),
        (status = 500, description = "the server failed while working on the request", body = ErrorBody),
        (status = 503, description = "the server is shutting down", body = ErrorBody),
    ))]
pub(super) async fn receive(
    State(state): State<AppState>,
    caller: Caller,
    client: McpClient,
    Raw(body): Raw,
) -> Response {
    let message = match McpMessage::read(&body) {
        Ok(message) => message,
        Err(fault) => return fault.into_response(),
    };
    let McpMessage { id, method, params, .. } = message;
    // `initialize` negotiates the revision in its body, so its header does not count.
    let version_check = if method == "initialize" { Ok(()) } else { client.check_version() };
    if let Err(fault) = version_check {
        return fault.to(id).into_response();
    }
    // A notification gets no response body, whatever its method.
    let Some(id) = id else { return StatusCode::ACCEPTED.into_response() };
    match answer(&state, &caller, &method, params).await {
        Ok(outcome) => outcome.to(id),
        Err(fault) => fault.to(Some(id)).into_response(),
    }
}

/// Dispatches a request to its method.
async fn answer(
    state: &AppState,
    caller: &Caller,
    method: &str,
    params: Option<Value>,
) -> Result<MethodResult, McpFault> {
    // Only `ask` chooses an index itself, by the policy, and needs all indexes for that.
    let own = || state.for_caller(caller);
    match method {
        "initialize" => initialize(&own(), params),
        "ping" => {
            message::params::<NoParams>(params)?;
            Ok(MethodResult::Object(json!({})))
        }
        "tools/list" => {
            let ListParams { cursor, .. } = message::params(params)?;
            if cursor.is_some() {
                let message = "`cursor`: the list has only one page, so there are no cursors";
                return Err(McpFault::params(ApiError::invalid("cursor", message)));
            }
            let tools = tool::list(&own()).map_err(McpFault::internal)?;
            Ok(MethodResult::Object(json!({"tools": tools})))
        }
        "tools/call" => {
            let call: CallParams = message::params(params)?;
            Ok(MethodResult::Tool(tool::call(state, caller, call).await?))
        }
        _ => Err(McpFault::method(method)),
    }
}

/// Parameters of a method that takes none, except for the `_meta` that every request may have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParams {
    _meta: Option<IgnoredAny>,
}

/// Parameters of a list method.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParams {
    cursor: Option<String>,
    _meta: Option<IgnoredAny>,
}

/// Parameters of `initialize`. Unknown fields are ignored here alone, because clients of newer revisions may send more
/// and are answered with an older revision.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams {
    protocol_version: String,
}

fn initialize(state: &AppState, params: Option<Value>) -> Result<MethodResult, McpFault> {
    let InitializeParams { protocol_version } = message::params(params)?;
    let offered: Vec<&str> = McpTool::offered(state).into_iter().map(McpTool::purpose).collect();
    let instructions = match &offered[..] {
        [] => "This server has neither an index nor a model yet.".to_owned(),
        offered => format!("Ask this server about the content of its corpus: {}.", offered.join("; ")),
    };
    Ok(MethodResult::Object(json!({
        "protocolVersion": client::negotiate(&protocol_version),
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "waymark", "title": "Waymark", "version": env!("CARGO_PKG_VERSION")},
        "instructions": instructions,
    })))
}
