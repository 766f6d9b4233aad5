//! Making a response: an episode's events into a draft, and out of it what there is to tell.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt};

use super::draft::Draft;
use super::event::ResponseEvent;
use crate::api::drain::{Drain, Phase};
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::sse::READY;

/// A draft that one task writes and others look at.
pub(super) type Shared = Arc<Mutex<Draft>>;

/// The draft. A writer that panicked has left a draft that is broken off nowhere worse than between two events.
pub(super) fn open(draft: &Mutex<Draft>) -> MutexGuard<'_, Draft> {
    draft.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the response that `draft` begins. Yields what happened in the order of its numbers, some of it at a time; the
/// last part is there only once the draft is over. Whatever happens, it ends: with the episode, with its error, or when
/// the drain expires.
pub(super) fn play(draft: Shared, events: Events, drain: Drain) -> impl Stream<Item = Vec<ResponseEvent>> + Send {
    async_stream::stream! {
        let first = {
            let mut draft = open(&draft);
            draft.begin();
            draft.told()
        };
        yield first;
        let mut expired = pin!(drain.reached(Phase::Expired));
        // What is ready together is told together.
        let mut batches = events.ready_chunks(READY);
        while !open(&draft).is_over() {
            let batch = tokio::select! {
                biased;
                () = &mut expired => vec![Err(shut_down())],
                batch = batches.next() => match batch {
                    Some(batch) => batch.into_iter().map(|(_, event)| event).collect(),
                    None => vec![Err(ApiError::new(Code::Internal, "the episode ended without a result"))],
                },
            };
            for event in batch {
                let mut draft = open(&draft);
                match event {
                    Ok(event) => draft.take(event),
                    Err(error) => draft.fail(error),
                }
            }
            let told = open(&draft).told();
            if !told.is_empty() {
                yield told;
            }
        }
    }
}

/// What a response gets whose server shuts down.
fn shut_down() -> ApiError {
    ApiError::new(Code::Draining, "the server shut down before this response was finished")
}
