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
        Ok(event) => frame.numbered(number, name(event), event),
        Err(error) => frame.numbered(number, "error", &error.body()),
    }
}

/// Returns the event's `type`, as serde writes it.
fn name(event: &Event) -> &'static str {
    match event {
        Event::Started { .. } => "started",
        Event::TurnStarted { .. } => "turn_started",
        Event::Think { .. } => "think",
        Event::Query { .. } => "query",
        Event::Answer { .. } => "answer",
        Event::Refusal { .. } => "refusal",
        Event::Text { .. } => "text",
        Event::SearchStarted { .. } => "search_started",
        Event::SearchFinished { .. } => "search_finished",
        Event::Withdrawn { .. } => "withdrawn",
        Event::Observation { .. } => "observation",
        Event::Invalid { .. } => "invalid",
        Event::Budget { .. } => "budget",
        Event::Finished { .. } => "finished",
        Event::Failed { .. } => "failed",
    }
}
