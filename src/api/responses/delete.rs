//! `DELETE /v1/responses/{id}`.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::entry::StopRequest;
use super::store::FoundResponse;
use crate::api::auth::Caller;
use crate::api::blocking::run_to_end;
use crate::api::error::{ApiError, ErrorBody};
use crate::api::path_param::PathParam;
use crate::api::state::AppState;

/// Deleted response.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeletedResponse {
    /// ID of the response.
    pub id: String,
    /// Always `response`.
    pub object: &'static str,
    /// Always `true`.
    pub deleted: bool,
}

/// Deletes a response and its trace. A background response still in progress is canceled first.
#[utoipa::path(delete, path = "/v1/responses/{id}", operation_id = "deleteResponse", tag = "inference",
    params(("id" = String, Path, description = "ID of the response")),
    responses(
        (status = 200, description = "the response is deleted", body = DeletedResponse),
        (status = 404, description = "no such response", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<DeletedResponse>, ApiError> {
    let found = state.responses.get(&id, &caller).await?;
    let running = state.drain.enter();
    let response = id.clone();
    // A task of its own, because a client that disconnects ends the request.
    run_to_end(async move {
        // A drain waits for the deletion, with or without its client.
        let _running = running;
        remove(&state, &caller, &response, found).await
    })
    .await?;
    Ok(axum::Json(DeletedResponse { id, object: "response", deleted: true }))
}

/// Removes a response and its trace.
///
/// # Errors
/// 503 if the state cannot be written. The deletion can then be repeated.
async fn remove(state: &AppState, caller: &Caller, id: &str, found: FoundResponse) -> Result<(), ApiError> {
    if let FoundResponse::Running(entry) = found {
        // Replaces an earlier cancellation, after which the response would be stored.
        entry.stop.send_replace(StopRequest::Forget);
        if let Some(log) = &entry.log {
            log.ended().await;
        }
    }
    // Before the response, by which a repeated deletion finds both.
    state.traces.remove(id, caller.owner).await?;
    // The response may have ended by itself just before, and been stored.
    state.responses.remove(id, caller).await?;
    // Again, because another server may have written the trace in between. A failure is logged and counted.
    let _ = state.traces.remove(id, caller.owner).await;
    Ok(())
}
