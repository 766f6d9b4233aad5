//! What moves the episode of a resumable stream on, whether anybody reads or not.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use tracing::Instrument;

use super::Streams;
use super::stream::Stream;
use crate::agent::Event;
use crate::api::auth::Caller;
use crate::api::drain::{Drain, Phase};
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::sse::Frame;

/// Writes an event, or what ended the episode, as the message of this number.
type Write = fn(&mut Frame, u64, &Result<Event, ApiError>);

/// Runs the episode behind `events` as the caller's stream called `id`, for as long as somebody reads it or may come back. A drain
/// waits for it. It waits while the stream has no room.
///
/// # Errors
/// 400 where the server has no such streams, 429 where the caller has as many as it may, 503 where there are as many as may be.
pub(crate) fn drive(
    streams: &Streams,
    caller: &Caller,
    id: &str,
    events: Events,
    drain: Drain,
    write: Write,
) -> Result<Arc<Stream>, ApiError> {
    let opened = streams.open(id, caller)?;
    let stream = opened.stream.clone();
    let running = drain.enter();
    let task = async move {
        // Whatever ends this task ends the stream.
        let opened = opened;
        let (stream, grace) = (opened.stream.clone(), opened.streams.config.grace);
        let mut abandoned = pin!(stream.abandoned(grace));
        let mut expired = pin!(drain.reached(Phase::Expired));
        tokio::select! {
            biased;
            () = &mut expired => return,
            // Dropping the events cancels the episode.
            () = &mut abandoned => return,
            pumped = AssertUnwindSafe(pump(events, &stream, write)).catch_unwind() => if pumped.is_err() {
                let bug = ApiError::new(Code::Internal, "this request ran into a bug in the server");
                let mut frame = Frame::default();
                write(&mut frame, stream.next(), &Err(bug));
                stream.push(frame.take());
            },
        }
        stream.end();
        // Nothing is computed any more, but the last events may not have arrived.
        drop(running);
        tokio::select! {
            () = expired => {}
            () = abandoned => {}
        }
    };
    tokio::spawn(task.in_current_span());
    Ok(stream)
}

/// Takes events as long as there is room for them, to the last one.
async fn pump(mut events: Events, stream: &Stream, write: Write) {
    let mut frame = Frame::default();
    loop {
        stream.room().await;
        let Some((_, event)) = events.next().await else { return };
        write(&mut frame, stream.next(), &event);
        stream.push(frame.take());
    }
}
