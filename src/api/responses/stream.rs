//! A response as a stream of events.

use std::pin::pin;
use std::sync::Arc;

use axum::body::Bytes;
use axum::response::Response;
use futures::{Stream, StreamExt};

use super::entry::Entry;
use super::play::{open, play};
use crate::api::drain::Drain;
use crate::api::follow::Events;
use crate::api::sse::{self, Frame};
use crate::api::state::AppState;

/// Answers with the events of a response that is made while its client reads, and only then.
pub(super) fn respond(state: &AppState, entry: Arc<Entry>, events: Events) -> Response {
    let owned = state.clone();
    let frames = async_stream::stream! {
        let mut play = pin!(play(entry.draft.clone(), events, owned.drain.clone()));
        let mut frame = Frame::default();
        while let Some(told) = play.next().await {
            // Kept before its last event is told: who has read that can ask for it.
            if open(&entry.draft).is_over() {
                owned.responses.keep(&entry);
            }
            for event in &told {
                frame.event(event.event.name(), event);
            }
            yield frame.take();
        }
    };
    send(state, frames)
}

/// Sends `frames`. An expired drain ends the response itself, in the words of its own stream, so here none is watched.
pub(super) fn send(state: &AppState, frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    sse::respond(frames, state.config.ping, Drain::default(), Frame::named_error)
}
