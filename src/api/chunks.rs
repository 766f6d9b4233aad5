//! Completions as streams of chunks: what the two interfaces of OpenAI that have them share.

use axum::response::Response;
use futures::StreamExt;

use super::episodes;
use super::error::ApiError;
use super::follow::Events;
use super::sse::{self, Frame};
use super::state::{AppState, now};
use crate::agent::{Event, Policy};

/// What a completion and all of its chunks begin with.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) id: String,
    /// When it was begun, in seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) fingerprint: String,
}

impl Head {
    /// That of the completion called `id`, which `policy` begins now.
    pub(super) fn new(state: &AppState, policy: &Policy, id: String) -> Head {
        let fingerprint = episodes::fingerprint(state, policy);
        Head { id, created: now(), model: policy.name.clone(), fingerprint }
    }
}

/// What writes the chunks of one stream.
pub(super) trait Chunks: Send + 'static {
    /// Writes what stands before all that happens.
    fn begin(&mut self, frame: &mut Frame);

    /// Writes what an event of answer number `index` makes.
    fn write(&mut self, frame: &mut Frame, index: usize, event: Event);

    /// Writes what follows the last event, but for the mark of the end.
    ///
    /// # Errors
    /// When an answer just broke off: its stream must not look whole.
    fn end(&self, frame: &mut Frame) -> Result<(), ApiError>;
}

/// Answers with the chunks that `events` make, and the mark of the end or an error in its place.
pub(super) fn respond(state: &AppState, mut chunks: impl Chunks, events: Events) -> Response {
    let frames = async_stream::stream! {
        let mut frame = Frame::default();
        chunks.begin(&mut frame);
        if !frame.is_empty() {
            yield frame.take();
        }
        // What is ready together is sent together, each chunk as a message of its own.
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
            Err(error) => frame.error(&error),
        }
        yield frame.take();
    };
    sse::respond(frames, state.config.ping, state.drain.clone(), Frame::error)
}
