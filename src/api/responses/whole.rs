//! Responses sent in one piece.

use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;

use super::entry::ResponseEntry;
use super::generation::{generate, lock};
use super::object::ResponseObject;
use crate::api::error::ApiError;
use crate::api::follow::Events;
use crate::api::state::AppState;

/// Waits for the end of the response. If the response fails, the request fails, and nothing is stored.
pub(super) async fn collect(
    state: &AppState,
    entry: &Arc<ResponseEntry>,
    events: Events,
) -> Result<ResponseObject, ApiError> {
    let mut batches = pin!(generate(entry.builder.clone(), events, state.drain.clone()));
    while batches.next().await.is_some() {}
    let (failure, show) = {
        let builder = lock(&entry.builder);
        (builder.failure().cloned(), builder.show())
    };
    if let Some(error) = failure {
        return Err(error);
    }
    state.responses.keep(entry);
    Ok(entry.shown(show))
}
