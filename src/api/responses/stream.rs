//! Responses sent as a stream of events.

use std::pin::pin;
use std::sync::Arc;

use axum::body::Bytes;
use axum::response::Response;
use futures::{Stream, StreamExt};

use super::entry::ResponseEntry;
use super::event::{ResponseEvent, ResponseEventKind};
use super::generation::{SharedBuilder, generate, keep, lock};
use crate::api::drain::Drain;
use crate::api::error::ApiError;
use crate::api::follow::Events;
use crate::api::sse::{self, Frame};
use crate::api::state::AppState;

/// Streams the events of a response, which is generated only while the client reads.
pub(super) fn respond(state: &AppState, entry: Arc<ResponseEntry>, events: Events) -> Response {
    let owned = state.clone();
    let shared = entry.builder.clone();
    let frames = async_stream::stream! {
        let mut batches = pin!(generate(entry.builder.clone(), events, owned.drain.clone()));
        let mut frame = Frame::default();
        while let Some(new_events) = batches.next().await {
            // The response is stored before its last event is sent, so a client that has read that event can fetch
            // it.
            let over = lock(&entry.builder).is_over();
            if over {
                // The head has been sent, so only the log and the metrics tell of a loss.
                let _ = keep(&owned, &entry).await;
            }
            for event in &new_events {
                frame.event(event.event.name(), event);
            }
            yield frame.take();
        }
    };
    send(state, shared, frames)
}

/// Sends the event frames of `builder`. The builder itself reports an expired drain, as an event of the stream's own
/// kind, so the drain passed on here never expires.
pub(super) fn send(
    state: &AppState,
    builder: SharedBuilder,
    frames: impl Stream<Item = Bytes> + Send + 'static,
) -> Response {
    sse::respond(frames, state.config.ping, Drain::default(), move |frame, error| broken(&builder, frame, error))
}

/// Sends the stored messages of a stream again, from number `from` on.
pub(super) fn repeat(state: &AppState, events: &[Bytes], from: usize) -> Response {
    let rest = events.get(from..).unwrap_or_default().concat();
    let count = events.len() as u64;
    let frames = futures::stream::once(std::future::ready(Bytes::from(rest)));
    sse::respond(frames, state.config.ping, Drain::default(), move |frame, error| {
        let event = ResponseEvent { event: ResponseEventKind::from(error), sequence_number: count };
        frame.event(event.event.name(), &event);
    })
}

/// Writes an error event in place of the remaining events, with the next sequence number.
fn broken(builder: &SharedBuilder, frame: &mut Frame, error: &ApiError) {
    let event = ResponseEvent { event: ResponseEventKind::from(error), sequence_number: lock(builder).next() };
    frame.event(event.event.name(), &event);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Mutex;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::super::property::object;
    use super::super::response_builder::ResponseBuilder;
    use super::super::show::Show;
    use super::*;

    #[tokio::test]
    async fn a_stream_that_breaks_ends_with_an_event_of_its_own_kind() {
        let builder = Arc::new(Mutex::new(ResponseBuilder::new(object(false, false), Show::default(), &[])));
        lock(&builder).begin();
        let new_events = lock(&builder).take_events().len();
        let frames = async_stream::stream! {
            yield Bytes::new();
            std::panic::panic_any("on purpose");
        };
        let last = move |frame: &mut Frame, error: &ApiError| broken(&builder, frame, error);
        let response = sse::respond(frames, Duration::from_secs(15), Drain::default(), last);
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let json = std::str::from_utf8(&bytes).unwrap().strip_prefix("event: error\ndata: ").unwrap();
        let mut event: Value = serde_json::from_str(json).unwrap();
        assert!(event["message"].take().is_string());
        let expected = json!({"type": "error", "code": "internal_error", "message": null, "param": null, "sequence_number": new_events});
        assert_eq!(event, expected);
    }
}
