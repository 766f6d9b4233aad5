//! `DELETE /v1/responses/{id}`.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::entry::StopRequest;
use super::id::ResponseId;
use super::store::FoundResponse;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, ErrorBody};
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
    ResponseId(id): ResponseId,
) -> Result<axum::Json<DeletedResponse>, ApiError> {
    if let FoundResponse::Running(entry) = state.responses.get(&id, &caller).await? {
        // Replaces an earlier cancellation, after which the response would be stored.
        entry.stop.send_replace(StopRequest::Forget);
        if let Some(log) = &entry.log {
            log.ended().await;
        }
    }
    // The response may have ended by itself just before, and been stored.
    state.responses.remove(&id, &caller).await?;
    state.traces.remove(&id, caller.owner).await?;
    Ok(axum::Json(DeletedResponse { id, object: "response", deleted: true }))
}
