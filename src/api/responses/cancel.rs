//! `POST /v1/responses/{id}/cancel`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::entry::StopRequest;
use super::generation::lock;
use super::object::ResponseObject;
use super::store::FoundResponse;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code, ErrorBody};
use crate::api::path_param::PathParam;
use crate::api::state::AppState;

/// Cancels a response that is generated in the background. A response that has ended is not changed.
#[utoipa::path(post, path = "/v1/responses/{id}/cancel", operation_id = "cancelResponse", tag = "inference",
    params(("id" = String, Path, description = "ID of the response")),
    responses(
        (status = 200, description = "the ended response", body = ResponseObject),
        (status = 400, description = "the response is not a background response", body = ErrorBody),
        (status = 404, description = "no such response", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read", body = ErrorBody),
    ))]
pub(crate) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<Response, ApiError> {
    let refuse = |message: &str| ApiError::new(Code::InvalidValue, message);
    let no_background = || refuse("only background responses can be canceled: close the connection of others");
    let entry = match state.responses.get(&id, &caller).await? {
        FoundResponse::Running(entry) => entry,
        FoundResponse::Stored(stored) if !stored.is_background() => return Err(no_background()),
        FoundResponse::Stored(stored) if stored.is_running_elsewhere() => {
            return Err(refuse("another server generates this response: it can be canceled only there"));
        }
        FoundResponse::Stored(stored) => {
            let show = stored.show;
            return Ok(axum::Json(stored.shown(show)).into_response());
        }
    };
    let log = entry.log.as_ref().ok_or_else(no_background)?;
    // Only the first request counts: a deletion must not be turned into a cancellation.
    entry.stop.send_if_modified(|stop| {
        let first = *stop == StopRequest::No;
        if first {
            *stop = StopRequest::Cancel;
        }
        first
    });
    // The log ends after the response was stored, so the reply shows its final state.
    log.ended().await;
    let show = lock(&entry.builder).show();
    Ok(axum::Json(entry.shown(show)).into_response())
}
