//! `/v1/agent` responses sent as an event stream.

use axum::response::Response;
use futures::StreamExt;
use waymark_agent::Event;

use crate::api::error::ApiError;
use crate::api::follow::Events;
use crate::api::sse::{self, Frame};
use crate::api::state::AppState;

/// Streams the events of an episode as they happen.
pub(super) fn respond(state: &AppState, events: Events) -> Response {
    let frames = async_stream::stream! {
        let mut frame = Frame::default();
        let mut number = 0;
        let mut batches = events.ready_chunks(sse::READY);
        while let Some(batch) = batches.next().await {
            for (_, event) in batch {
                number += 1;
                write(&mut frame, number, &event);
            }
            yield frame.take();
        }
    };
    sse::respond(frames, state.config.ping, state.drain.clone(), Frame::named_error)
}

/// Writes one event of the stream.
pub(super) fn write(frame: &mut Frame, number: u64, event: &Result<Event, ApiError>) {
    match event {
        Ok(event) => frame.numbered(number, event.name(), event),
        Err(error) => frame.numbered(number, "error", &error.body()),
    }
}
