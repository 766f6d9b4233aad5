//! A response in one piece.

use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;

use super::entry::Entry;
use super::object::ResponseObject;
use super::play::{open, play};
use crate::api::error::ApiError;
use crate::api::follow::Events;
use crate::api::state::AppState;

/// Waits for its end. One that fails is an error of the request, and is not kept.
pub(super) async fn collect(state: &AppState, entry: &Arc<Entry>, events: Events) -> Result<ResponseObject, ApiError> {
    let mut play = pin!(play(entry.draft.clone(), events, state.drain.clone()));
    while play.next().await.is_some() {}
    let (failure, show) = {
        let draft = open(&entry.draft);
        (draft.failure().cloned(), draft.show())
    };
    if let Some(error) = failure {
        return Err(error);
    }
    state.responses.keep(entry);
    Ok(entry.shown(show))
}
