//! `/v1/traces`: what was written down about episodes that are over, and running them again.
//!
//! `recorder`, `kept`: what is kept, and when · `trace`, `tokens`: how it goes over the wire · `replay`, `difference`:
//! running an episode again, and what is different

mod difference;
mod kept;
mod recorder;
pub mod replay;
pub mod tokens;
pub mod trace;

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::Caller;
use super::error::{ApiError, Code, ErrorBody};
use super::page;
use super::state::AppState;
use trace::{Trace, TraceSummary};

pub(crate) use kept::{Asked, Kept};
pub(super) use recorder::{Admission, Recorder, wanted};

/// Traces, youngest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceList {
    /// Always `list`.
    pub object: &'static str,
    /// The traces without their contents.
    pub data: Vec<TraceSummary>,
    /// Whether older ones are kept.
    pub has_more: bool,
}

/// A trace that is not kept any more.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceDeleted {
    /// Its id.
    pub id: String,
    /// Always `trace.deleted`.
    pub object: &'static str,
    /// Always true.
    pub deleted: bool,
}

/// The traces that are kept, youngest first.
///
/// Traces are kept in memory, as many as `--trace-count` and `--trace-bytes` allow; the oldest go first. A request keeps
/// its own out by `store: false` or `rag.store: false`. Where the server has keys, each key sees those of its own
/// requests alone.
#[utoipa::path(get, path = "/v1/traces", operation_id = "listTraces", tag = "traces",
    params(("limit" = Option<usize>, Query, description = "how many, from 1 to 100; 20 when not given")),
    responses(
        (status = 200, description = "the traces", body = TraceList),
        (status = 400, description = "a parameter makes no sense", body = ErrorBody),
    ))]
pub(super) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<TraceList>, ApiError> {
    let limit = limit(query.as_deref().unwrap_or_default())?;
    // One more than is shown says whether there are more.
    let found = state.traces.youngest(limit + 1, |kept| kept.is_of(&caller));
    let has_more = found.len() > limit;
    let data = found.iter().take(limit).map(|kept| kept.summary()).collect();
    Ok(axum::Json(TraceList { object: "list", data, has_more }))
}

/// Everything that was written down about an episode that is over: finished, failed or cancelled.
#[utoipa::path(get, path = "/v1/traces/{id}", operation_id = "retrieveTrace", tag = "traces",
    params(("id" = String, Path, description = "the id of the episode, completion or response")),
    responses(
        (status = 200, description = "the trace", body = Trace),
        (status = 404, description = "no such trace is kept", body = ErrorBody),
    ))]
pub(super) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let kept = find(&state, &caller, id)?;
    Ok(axum::Json(kept.trace()).into_response())
}

/// Forgets a trace.
#[utoipa::path(delete, path = "/v1/traces/{id}", operation_id = "deleteTrace", tag = "traces",
    params(("id" = String, Path, description = "the id of the episode, completion or response")),
    responses(
        (status = 200, description = "it is forgotten", body = TraceDeleted),
        (status = 404, description = "no such trace is kept", body = ErrorBody),
    ))]
pub(super) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<axum::Json<TraceDeleted>, ApiError> {
    let kept = find(&state, &caller, id)?;
    state.traces.remove(kept.id());
    Ok(axum::Json(TraceDeleted { id: kept.id().to_owned(), object: "trace.deleted", deleted: true }))
}

/// The trace of this id, if it is the caller's.
fn find(state: &AppState, caller: &Caller, id: Result<Path<String>, PathRejection>) -> Result<Arc<Kept>, ApiError> {
    let absent = |message: String| ApiError::new(Code::TraceNotFound, message).with_param("id");
    let Path(id) = id.map_err(|error| absent(error.body_text()))?;
    let kept = state.traces.get(&id).filter(|kept| kept.is_of(caller));
    kept.ok_or_else(|| absent(format!("no trace `{id}` is kept")))
}

fn limit(query: &str) -> Result<usize, ApiError> {
    let mut limit = page::PAGE;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != "limit" {
            return Err(ApiError::unknown(&name));
        }
        limit = page::limit(&value)?;
    }
    Ok(limit)
}
