//! Responses generated in the background, without a client waiting.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use tracing::Instrument;

use super::entry::{ResponseEntry, StopRequest};
use super::event::ResponseEvent;
use super::generation::{generate, lock};
use super::store::Responses;
use crate::api::auth::Caller;
use crate::api::drain::Drain;
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
        let made = AssertUnwindSafe(make(&state.responses, &state.drain, &entry, events)).catch_unwind().await;
        let last = made.unwrap_or_else(|_| {
            let mut builder = lock(&entry.builder);
            builder.fail(ApiError::new(Code::Internal, "this response ran into a bug in the server"));
            builder.take_events()
        });
        // The last events must be in the log before the size of the response is measured.
        if let Some(log) = &entry.log {
            log.add(&last);
        }
        // The response is stored before its last events are sent, so a client that has read them can fetch it.
        if *entry.stop.borrow() != StopRequest::Forget {
            // A loss is logged and counted, and the stored response then shows as failed.
            let _ = state.responses.keep(&entry, &state.traces).await;
        }
        // Unregistered after it was stored, so the response can be found at every moment.
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
async fn make(responses: &Responses, drain: &Drain, entry: &ResponseEntry, events: Events) -> Vec<ResponseEvent> {
    let mut stop = entry.stop.subscribe();
    let mut stopped = pin!(stop.wait_for(|stop| *stop != StopRequest::No));
    let mut batches = pin!(generate(entry.builder.clone(), events, drain.clone()));
    // Ready at once. Every stream begins with these events, also that of a response that is already canceled.
    let mut batch = batches.next().await;
    loop {
        let Some(new_events) = batch else { return Vec::new() };
        // The caller sends the last events, after it has stored the response.
        if lock(&entry.builder).is_over() {
            return new_events;
        }
        if let Some(log) = &entry.log {
            log.push(&new_events);
            if let Err(error) = responses.holds(log) {
                let mut builder = lock(&entry.builder);
                builder.overflow(error);
                return builder.take_events();
            }
        }
        batch = tokio::select! {
            // Cancellation comes before further events.
            biased;
            _ = &mut stopped => {
                let mut builder = lock(&entry.builder);
                builder.cancel();
                return builder.take_events();
            }
            batch = batches.next() => batch,
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Mutex;

    use tokio::sync::watch;

    use super::super::chat_history::ChatHistory;
    use super::super::property::object;
    use super::super::response_builder::ResponseBuilder;
    use super::super::show::Show;
    use super::*;
    use crate::api::records::Records;
    use crate::config::ResponseLimits;
    use crate::store::{MemoryLimits, MemoryStore};

    /// Creates the entry of a background response that a client has stopped before its task runs.
    fn stopped(stop: StopRequest) -> ResponseEntry {
        let builder = ResponseBuilder::new(object(true, false), Show::default(), &[]);
        ResponseEntry {
            id: "resp_1".to_owned(),
            owner: None,
            until: None,
            builder: Arc::new(Mutex::new(builder)),
            store: true,
            history: ChatHistory::default(),
            input: Vec::new(),
            conversation: None,
            log: Some(Arc::default()),
            stop: watch::Sender::new(stop),
        }
    }

    #[tokio::test]
    async fn the_stream_of_a_response_that_is_canceled_at_once_has_its_first_events() {
        let limits = ResponseLimits::default();
        let store = MemoryStore::new(MemoryLimits { count: limits.kept, bytes: limits.bytes });
        let responses = Responses::new(Records::new(Arc::new(store)), limits);
        for stop in [StopRequest::Cancel, StopRequest::Forget] {
            let entry = stopped(stop);
            let events: Events = futures::stream::pending().boxed();
            let last = make(&responses, &Drain::default(), &entry, events).await;
            let log = entry.log.as_ref().unwrap();
            log.add(&last);
            let messages = log.messages_so_far();
            let names: Vec<&str> = messages.iter().map(|message| message.lines().next().unwrap()).collect();
            let expected = ["event: response.created", "event: response.queued", "event: response.incomplete"];
            assert_eq!(names, expected, "{stop:?}");
        }
    }
}
