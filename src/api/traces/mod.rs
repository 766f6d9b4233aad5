//! `/v1/traces`: traces of finished episodes, and replaying them.
//!
//! `recorder`, `store`, `stored_trace`: recording and storing · `trace`, `tokens`: wire types · `replay`, `difference`:
//! running an episode again and comparing it with its trace

mod difference;
mod recorder;
pub mod replay;
mod store;
mod stored_trace;
pub mod tokens;
pub mod trace;

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::auth::Caller;
use super::error::{ApiError, Code, ErrorBody};
use super::pagination;
use super::path_param::PathParam;
use super::state::AppState;
use super::unknown_id;
use store::FoundTrace;
use trace::{Trace, TraceSummary};

pub(super) use recorder::{Recorder, RequestAdmission, should_record};
pub(crate) use store::Traces;
pub(crate) use stored_trace::{StoredTrace, TraceRequest};

/// List of traces, youngest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceList {
    /// Always `list`.
    pub object: &'static str,
    /// Traces without their content.
    #[schema(value_type = Vec<TraceSummary>)]
    pub data: Vec<Value>,
    /// If `true`, there are older traces.
    pub has_more: bool,
}

/// Deleted trace.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceDeleted {
    /// ID of the trace.
    pub id: String,
    /// Always `trace.deleted`.
    pub object: &'static str,
    /// Always `true`.
    pub deleted: bool,
}

/// Lists the stored traces, youngest first.
///
/// The youngest are in memory, as many as `--trace-count` and `--trace-bytes` allow, and can be replayed. A server with a
/// state also lists those of earlier processes, and of other servers that share it. A request opts out with `store: false`
/// or `rag.store: false`. With API keys, each key sees only the traces of its own requests.
#[utoipa::path(get, path = "/v1/traces", operation_id = "listTraces", tag = "traces",
    params(("limit" = Option<usize>, Query, minimum = 1, maximum = 100, description = "maximum number of traces, from 1 to 100; defaults to 20")),
    responses(
        (status = 200, description = "the traces", body = TraceList),
        (status = 400, description = "a parameter is invalid", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read", body = ErrorBody),
    ))]
pub(super) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<TraceList>, ApiError> {
    let limit = limit(query.as_deref().unwrap_or_default())?;
    // One more than the limit is fetched, to find out whether there are more.
    let mut data = state.traces.youngest(&caller, limit + 1).await?;
    let has_more = data.len() > limit;
    data.truncate(limit);
    Ok(axum::Json(TraceList { object: "list", data, has_more }))
}

/// Returns the whole trace of an episode, whether it finished, failed or was canceled.
#[utoipa::path(get, path = "/v1/traces/{id}", operation_id = "retrieveTrace", tag = "traces",
    params(("id" = String, Path, description = "ID of the episode, completion or response")),
    responses(
        (status = 200, description = "the trace", body = Trace),
        (status = 404, description = "no such trace is kept", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read or written", body = ErrorBody),
    ))]
pub(super) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<Response, ApiError> {
    Ok(match find(&state, &caller, &id).await? {
        FoundTrace::Recent(kept) => axum::Json(kept.trace()).into_response(),
        FoundTrace::Recorded(trace) => axum::Json(trace).into_response(),
    })
}

/// Deletes a trace.
#[utoipa::path(delete, path = "/v1/traces/{id}", operation_id = "deleteTrace", tag = "traces",
    params(("id" = String, Path, description = "ID of the episode, completion or response")),
    responses(
        (status = 200, description = "the trace is deleted", body = TraceDeleted),
        (status = 404, description = "no such trace is kept", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read or written", body = ErrorBody),
    ))]
pub(super) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<TraceDeleted>, ApiError> {
    let id = match find(&state, &caller, &id).await? {
        FoundTrace::Recent(kept) => kept.id().to_owned(),
        FoundTrace::Recorded(trace) => trace["id"].as_str().unwrap_or_default().to_owned(),
    };
    state.traces.remove(&id, caller.owner).await?;
    Ok(axum::Json(TraceDeleted { id, object: "trace.deleted", deleted: true }))
}

/// Returns the trace with this ID, if it belongs to the caller.
async fn find(state: &AppState, caller: &Caller, id: &str) -> Result<FoundTrace, ApiError> {
    // A trace of another key is reported as unknown, so its existence is not revealed.
    let found = state.traces.find(id, caller).await?;
    found.ok_or_else(|| {
        let unkept = "is of a request with `store: false` or of an unfinished episode, ";
        let message = unknown_id::message("trace", id, unkept, "`--trace-count`, `--trace-bytes`");
        ApiError::new(Code::TraceNotFound, message).with_param("id")
    })
}

/// Returns the trace with this ID, if it is in memory, belongs to the caller, and was not deleted by another server.
/// The existence of a trace of another key is not revealed.
pub(super) async fn recent(state: &AppState, caller: &Caller, id: &str) -> Option<Arc<StoredTrace>> {
    // Where the state cannot be read, which is logged and counted, the trace may be deleted, and so it is not used.
    state.traces.find_in_memory(id, caller).await.ok().flatten()
}

/// Returns the trace with the ID of a path, if it belongs to the caller and is in memory.
///
/// # Errors
/// 404 if there is no such trace, 409 if it was only recorded: the policy object that answered is gone.
async fn find_recent(state: &AppState, caller: &Caller, id: &str) -> Result<Arc<StoredTrace>, ApiError> {
    match find(state, caller, id).await? {
        FoundTrace::Recent(kept) => Ok(kept),
        FoundTrace::Recorded(_) => {
            let message = "this trace is no longer in memory: it can be read, and not replayed";
            Err(ApiError::new(Code::PolicyChanged, message).with_param("id"))
        }
    }
}

fn limit(query: &str) -> Result<usize, ApiError> {
    let mut limit = pagination::PAGE;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != "limit" {
            return Err(ApiError::unknown(&name));
        }
        limit = pagination::limit(&value)?;
    }
    Ok(limit)
}
