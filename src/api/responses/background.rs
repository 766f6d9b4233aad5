//! Responses that are made without a client waiting.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use tracing::Instrument;

use super::entry::{Entry, Stop};
use super::event::ResponseEvent;
use super::play::{open, play};
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::state::AppState;

/// Makes a response on a task of its own, in the name of the request that asked for it. A drain waits for it, as for a
/// request.
///
/// # Errors
/// 429 when the caller has as many made already as it may, 503 when as many are made as may be.
pub(super) fn start(state: &AppState, caller: &Caller, entry: &Arc<Entry>, events: Events) -> Result<(), ApiError> {
    state.responses.begin(entry, caller)?;
    let (state, entry, running) = (state.clone(), entry.clone(), state.drain.enter());
    let work = async move {
        let last = AssertUnwindSafe(make(&state, &entry, events)).catch_unwind().await.unwrap_or_else(|_| {
            let mut draft = open(&entry.draft);
            draft.fail(ApiError::new(Code::Internal, "this response ran into a bug in the server"));
            draft.told()
        });
        // Its last events count among its bytes.
        if let Some(log) = &entry.log {
            log.add(&last);
        }
        // Kept before its last events are told: who has read them can ask for it.
        if *entry.stop.borrow() != Stop::Forget {
            state.responses.keep(&entry);
        }
        state.responses.end(&entry.id);
        if let Some(log) = &entry.log {
            log.end();
        }
        drop(running);
    };
    tokio::spawn(work.in_current_span());
    Ok(())
}

/// Makes it, until it is over or somebody wants no more of it, and returns what is still to be told.
async fn make(state: &AppState, entry: &Entry, events: Events) -> Vec<ResponseEvent> {
    let mut stop = entry.stop.subscribe();
    let mut stopped = pin!(stop.wait_for(|stop| *stop != Stop::No));
    let mut play = pin!(play(entry.draft.clone(), events, state.drain.clone()));
    loop {
        let told = tokio::select! {
            biased;
            _ = &mut stopped => {
                let mut draft = open(&entry.draft);
                draft.cancel();
                return draft.told();
            }
            told = play.next() => told,
        };
        let Some(told) = told else { return Vec::new() };
        if open(&entry.draft).is_over() {
            return told;
        }
        if let Some(log) = &entry.log {
            log.push(&told);
            if let Err(error) = state.responses.holds(log) {
                let mut draft = open(&entry.draft);
                draft.overflow(error);
                return draft.told();
            }
        }
    }
}
