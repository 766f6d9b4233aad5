//! Runs the episode of a response: feeds its events to the builder and yields the resulting stream events.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt};

use super::entry::ResponseEntry;
use super::event::ResponseEvent;
use super::response_builder::ResponseBuilder;
use crate::api::blocking::run_to_end;
use crate::api::drain::{Drain, DrainPhase};
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::records::Unwritten;
use crate::api::sse::READY;
use crate::api::state::AppState;

/// Response under construction, written by one task and read by others.
pub(super) type SharedBuilder = Arc<Mutex<ResponseBuilder>>;

/// Locks the builder. After a panic of its writer it is still consistent, at worst between two events.
pub(super) fn lock(builder: &Mutex<ResponseBuilder>) -> MutexGuard<'_, ResponseBuilder> {
    builder.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Generates the response in `builder`. Yields stream events in batches, ordered by sequence number. When the last
/// batch is yielded, the builder has ended. The stream always ends: with the episode, with an error, or when the drain
/// expires.
pub(super) fn generate(
    builder: SharedBuilder,
    events: Events,
    drain: Drain,
) -> impl Stream<Item = Vec<ResponseEvent>> + Send {
    async_stream::stream! {
        let first = {
            let mut builder = lock(&builder);
            builder.begin();
            builder.take_events()
        };
        yield first;
        let mut expired = pin!(drain.reached(DrainPhase::Expired));
        // Events that are ready together are sent together.
        let mut batches = events.ready_chunks(READY);
        while !lock(&builder).is_over() {
            let batch = tokio::select! {
                biased;
                // Handled like an error of the episode, so the stream ends with an event of its own kind.
                () = &mut expired => vec![Err(shut_down())],
                batch = batches.next() => match batch {
                    Some(batch) => batch.into_iter().map(|(_, event)| event).collect(),
                    None => vec![Err(ApiError::new(Code::Internal, "the episode ended without a result"))],
                },
            };
            for event in batch {
                let mut builder = lock(&builder);
                match event {
                    Ok(event) => builder.handle(event),
                    Err(error) => builder.fail(error),
                }
            }
            let new_events = lock(&builder).take_events();
            if !new_events.is_empty() {
                yield new_events;
            }
        }
    }
}

/// Stores a response that has ended, and its items in its conversation, even if the client leaves in between.
///
/// # Errors
/// Never in practice. The inner result tells of a loss, as in [`Responses::keep`](super::store::Responses::keep).
pub(super) async fn keep(state: &AppState, entry: &Arc<ResponseEntry>) -> Result<Result<(), Unwritten>, ApiError> {
    let state = state.clone();
    let entry = Arc::clone(entry);
    let running = state.drain.enter();
    run_to_end(async move {
        let _running = running;
        Ok(state.responses.keep(&entry, &state.traces).await)
    })
    .await
}

/// Creates the error of a response cut off by the server's shutdown.
fn shut_down() -> ApiError {
    ApiError::new(Code::Draining, "the server shut down before this response was finished")
}
