//! Task that runs the episode of a resumable stream, whether or not a client reads it.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use tracing::Instrument;
use waymark_agent::Event;

use super::Streams;
use super::stream::ResumableStream;
use crate::api::auth::Caller;
use crate::api::drain::{Drain, DrainPhase};
use crate::api::error::ApiError;
use crate::api::follow::Events;
use crate::api::sse::Frame;

/// Function that writes an event, or the error that ended the episode, as the message with the given number.
type Write = fn(&mut Frame, u64, &Result<Event, ApiError>);

/// Runs the episode behind `events` as the caller's stream `id`, as long as a client reads the stream or may still
/// return. The task pauses while the stream's buffer is full. A drain waits for it.
///
/// # Errors
/// 400 if the server has no resumable streams, 429 if the caller has its maximum number of them, 503 if the server has.
pub(crate) fn drive(
    streams: &Streams,
    caller: &Caller,
    id: &str,
    events: Events,
    drain: Drain,
    write: Write,
) -> Result<Arc<ResumableStream>, ApiError> {
    let opened = streams.open(id, caller)?;
    let stream = opened.stream.clone();
    let running = drain.enter();
    let task = async move {
        // Moved into the task, so the stream ends however the task ends.
        let opened = opened;
        let stream = opened.stream.clone();
        let grace = opened.streams.config.grace;
        let mut abandoned = pin!(stream.abandoned(grace));
        let mut expired = pin!(drain.reached(DrainPhase::Expired));
        tokio::select! {
            biased;
            // Returning drops `opened`, which ends the stream for its readers.
            () = &mut expired => return,
            // Dropping the events cancels the episode.
            () = &mut abandoned => return,
            pumped = AssertUnwindSafe(pump(events, &stream, write)).catch_unwind() => if pumped.is_err() {
                let mut frame = Frame::default();
                write(&mut frame, stream.next(), &Err(ApiError::bug()));
                stream.push(frame.take());
            },
        }
        stream.end();
        // Nothing is computed any more, but a client may still fetch the last events.
        drop(running);
        tokio::select! {
            () = expired => {}
            () = abandoned => {}
        }
    };
    tokio::spawn(task.in_current_span());
    Ok(stream)
}

/// Moves all events to the stream, waiting while its buffer is full.
async fn pump(mut events: Events, stream: &ResumableStream, write: Write) {
    let mut frame = Frame::default();
    loop {
        stream.wait_for_room().await;
        let Some((_, event)) = events.next().await else { return };
        write(&mut frame, stream.next(), &event);
        stream.push(frame.take());
    }
}
