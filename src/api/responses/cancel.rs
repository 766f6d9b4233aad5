//! `POST /v1/responses/{id}/cancel`.

use axum::extract::State;

use super::entry::Stop;
use super::id::Id;
use super::object::ResponseObject;
use super::play::open;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code, ErrorBody};
use crate::api::state::AppState;

/// Ends a response that is made in the background. One that is over stays as it is.
#[utoipa::path(post, path = "/v1/responses/{id}/cancel", operation_id = "cancelResponse", tag = "inference",
    params(("id" = String, Path, description = "the response's id")),
    responses(
        (status = 200, description = "the response, which is over", body = ResponseObject),
        (status = 400, description = "it is not made in the background", body = ErrorBody),
        (status = 404, description = "no such response", body = ErrorBody),
    ))]
pub(crate) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<axum::Json<ResponseObject>, ApiError> {
    let entry = state.responses.get(&id, &caller)?;
    let Some(log) = &entry.log else {
        let message =
            "only responses that are made in the background can be cancelled: of others, close the connection";
        return Err(ApiError::new(Code::InvalidValue, message));
    };
    entry.stop.send_if_modified(|stop| {
        let first = *stop == Stop::No;
        if first {
            *stop = Stop::Cancel;
        }
        first
    });
    log.ended().await;
    let show = open(&entry.draft).show();
    Ok(axum::Json(entry.shown(show)))
}
