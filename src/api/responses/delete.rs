//! `DELETE /v1/responses/{id}`.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::entry::Stop;
use super::id::Id;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, ErrorBody};
use crate::api::state::AppState;

/// A response that is kept no longer.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeletedResponse {
    /// Its id.
    pub id: String,
    /// Always `response`.
    pub object: &'static str,
    /// Always true.
    pub deleted: bool,
}

/// Forgets a response and its trace. One that is being made in the background is cancelled first.
#[utoipa::path(delete, path = "/v1/responses/{id}", operation_id = "deleteResponse", tag = "inference",
    params(("id" = String, Path, description = "the response's id")),
    responses(
        (status = 200, description = "it is forgotten", body = DeletedResponse),
        (status = 404, description = "no such response", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<axum::Json<DeletedResponse>, ApiError> {
    let entry = state.responses.get(&id, &caller)?;
    entry.stop.send_replace(Stop::Forget);
    if let Some(log) = &entry.log {
        log.ended().await;
    }
    // It may have ended by itself just before, and been kept.
    state.responses.remove(&id);
    state.traces.remove(&id);
    Ok(axum::Json(DeletedResponse { id, object: "response", deleted: true }))
}
