//! Streaming of completions as chunks, shared by `/v1/chat/completions` and `/v1/completions`.

use axum::response::Response;
use futures::StreamExt;
use waymark_agent::{Event, Policy};

use super::episodes;
use super::error::ApiError;
use super::follow::Events;
use super::sse::{self, Frame};
use super::state::{AppState, now};

/// Fields shared by a completion and all of its chunks.
#[derive(Debug, Clone)]
pub(super) struct CompletionHead {
    pub(super) id: String,
    /// Creation time, in seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) fingerprint: String,
}

impl CompletionHead {
    /// Creates the fields of the completion `id`, which `policy` starts now.
    pub(super) fn new(state: &AppState, policy: &Policy, id: String) -> CompletionHead {
        let fingerprint = episodes::fingerprint(state, policy);
        CompletionHead { id, created: now(), model: policy.name.clone(), fingerprint }
    }
}

/// Writer of the chunks of one stream.
pub(super) trait Chunks: Send + 'static {
    /// Writes the chunks before the first event.
    fn begin(&mut self, frame: &mut Frame);

    /// Writes the chunks of one event of answer number `index`.
    fn write(&mut self, frame: &mut Frame, index: usize, event: Event);

    /// Writes the chunks after the last event, except for `[DONE]`.
    ///
    /// # Errors
    /// If an answer broke off: its stream must not look complete.
    fn end(&self, frame: &mut Frame) -> Result<(), ApiError>;
}

/// Streams the chunks of `events`, followed by `[DONE]` or an error.
pub(super) fn respond(state: &AppState, mut chunks: impl Chunks, events: Events) -> Response {
    let frames = async_stream::stream! {
        let mut frame = Frame::default();
        chunks.begin(&mut frame);
        if !frame.is_empty() {
            yield frame.take();
        }
        // Events that are ready together are sent in one frame, each chunk as a message of its own.
        let mut batches = events.ready_chunks(sse::READY);
        let told = 'told: loop {
            let Some(batch) = batches.next().await else { break chunks.end(&mut frame) };
            for (index, event) in batch {
                match event {
                    Ok(event) => chunks.write(&mut frame, index, event),
                    Err(error) => break 'told Err(error),
                }
            }
            if !frame.is_empty() {
                yield frame.take();
            }
        };
        match told {
            Ok(()) => frame.done(),
            // The frame may hold chunks that came before the error; they are sent together.
            Err(error) => frame.error(&error),
        }
        yield frame.take();
    };
    sse::respond(frames, state.config.ping, state.drain.clone(), Frame::error)
}
