//! Responses generated in the background, without a client waiting.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use tracing::Instrument;

use super::entry::{ResponseEntry, StopRequest};
use super::event::ResponseEvent;
use super::generation::{generate, lock};
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::state::AppState;

/// Generates a response on its own task, inside the span of the request. A drain waits for the task as for a request.
///
/// # Errors
/// 429 if the caller has its maximum number of background responses running, 503 if the server has, or if the response
/// cannot be stored.
pub(super) async fn start(
    state: &AppState,
    caller: &Caller,
    entry: &Arc<ResponseEntry>,
    events: Events,
) -> Result<(), ApiError> {
    state.responses.begin(entry, caller).await?;
    let state = state.clone();
    let entry = entry.clone();
    // Entered before the task is spawned, because a drain that begins in between would not wait for it.
    let running = state.drain.enter();
    let work = async move {
        let last = AssertUnwindSafe(make(&state, &entry, events)).catch_unwind().await.unwrap_or_else(|_| {
            let mut builder = lock(&entry.builder);
            builder.fail(ApiError::new(Code::Internal, "this response ran into a bug in the server"));
            builder.take_events()
        });
        // The last events must be in the log before the size of the response is measured.
        if let Some(log) = &entry.log {
            log.add(&last);
        }
        // The response is stored before its last events are sent, so that a client that has read them can fetch it.
        if *entry.stop.borrow() != StopRequest::Forget {
            // A loss is logged and counted, and the stored response then shows as failed.
            let _ = state.responses.keep(&entry, &state.traces).await;
        }
        // Unregistered after it was stored, so that the response can be found at every moment.
        state.responses.end(&entry.id);
        if let Some(log) = &entry.log {
            log.end();
        }
        drop(running);
    };
    tokio::spawn(work.in_current_span());
    Ok(())
}

/// Runs the episode until it ends or the response is canceled. Returns the last events, which are not in the log yet.
async fn make(state: &AppState, entry: &ResponseEntry, events: Events) -> Vec<ResponseEvent> {
    let mut stop = entry.stop.subscribe();
    let mut stopped = pin!(stop.wait_for(|stop| *stop != StopRequest::No));
    let mut batches = pin!(generate(entry.builder.clone(), events, state.drain.clone()));
    loop {
        let new_events = tokio::select! {
            // Cancellation comes before further events.
            biased;
            _ = &mut stopped => {
                let mut builder = lock(&entry.builder);
                builder.cancel();
                return builder.take_events();
            }
            new_events = batches.next() => new_events,
        };
        let Some(new_events) = new_events else { return Vec::new() };
        // The caller sends the last events, after it has stored the response.
        if lock(&entry.builder).is_over() {
            return new_events;
        }
        if let Some(log) = &entry.log {
            log.push(&new_events);
            if let Err(error) = state.responses.holds(log) {
                let mut builder = lock(&entry.builder);
                builder.overflow(error);
                return builder.take_events();
            }
        }
    }
}
