//! Responses sent in one piece.

use std::pin::pin;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use futures::StreamExt;

use super::entry::ResponseEntry;
use super::generation::{generate, keep, lock};
use crate::api::error::ApiError;
use crate::api::follow::Events;
use crate::api::records::not_stored;
use crate::api::state::AppState;

/// Waits for the end of the response, and stores it. If the response fails, the request fails, and nothing is stored.
pub(super) async fn collect(
    state: &AppState,
    entry: &Arc<ResponseEntry>,
    events: Events,
) -> Result<Response, ApiError> {
    let mut batches = pin!(generate(entry.builder.clone(), events, state.drain.clone()));
    while batches.next().await.is_some() {}
    let (failure, show) = {
        let builder = lock(&entry.builder);
        (builder.failure().cloned(), builder.show())
    };
    if let Some(error) = failure {
        return Err(error);
    }
    // The ID is given out only after the commit, since the client may continue the response at once.
    let stored = keep(state, entry).await?;
    let response = axum::Json(entry.shown(show)).into_response();
    Ok(match stored {
        Ok(()) => response,
        Err(lost) => not_stored(response, lost),
    })
}
