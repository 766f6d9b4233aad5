//! State shared by an episode and the readers of its stream.

use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::log::EventBuffer;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::keys::KeyOwner;

/// Resumable stream: its events and its current reader.
#[derive(Debug)]
pub(crate) struct ResumableStream {
    /// Key that owns the stream; no other key may read it.
    pub(super) owner: Option<KeyOwner>,
    /// Deadline of the episode.
    pub(crate) end: Option<Instant>,
    pub(super) state: watch::Sender<StreamState>,
}

#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) log: EventBuffer,
    /// Number of the current reader. `None` while nobody reads.
    pub(super) reader: Option<u64>,
    readers: u64,
    /// Time the last reader detached.
    left: Instant,
    /// If `true`, the stream has ended.
    pub(super) over: bool,
    /// If `true`, no reader returned in time or the client has given the stream up, so the buffered events are not the
    /// whole stream.
    abandoned: bool,
}

impl ResumableStream {
    /// Creates a stream of `caller` with a buffer for about `bytes` bytes of events.
    pub(super) fn new(caller: &Caller, bytes: usize) -> ResumableStream {
        let state = StreamState {
            log: EventBuffer::new(bytes),
            reader: None,
            readers: 0,
            left: Instant::now(),
            over: false,
            abandoned: false,
        };
        ResumableStream { owner: caller.owner, end: caller.lifetime.end(), state: watch::Sender::new(state) }
    }

    /// Appends the next event.
    pub(super) fn push(&self, event: Bytes) {
        self.state.send_modify(|state| state.log.push(event));
    }

    /// Returns the number of the next event.
    pub(super) fn next(&self) -> u64 {
        self.state.borrow().log.last() + 1
    }

    /// Returns the size of the buffered events.
    pub(super) fn bytes(&self) -> usize {
        self.state.borrow().log.bytes()
    }

    /// Ends the stream.
    pub(super) fn end(&self) {
        self.state.send_modify(|state| state.over = true);
    }

    /// Returns `true` if the stream has ended and all its events were sent.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state.borrow();
        state.over && state.log.is_sent()
    }

    /// Waits until there is room for another event.
    pub(super) async fn wait_for_room(&self) {
        // The sender lives in `self`, so the wait can end only by its condition.
        let _ = self.state.subscribe().wait_for(|state| state.log.has_room()).await;
    }

    /// Ends the stream for its reader and its episode.
    pub(crate) fn give_up(&self) {
        self.state.send_modify(|state| {
            state.abandoned = true;
            state.reader = None;
        });
    }

    /// Waits until nobody has read for `grace`, and marks the stream as abandoned, or until it is given up.
    pub(super) async fn abandoned(&self, grace: Duration) {
        let mut states = self.state.subscribe();
        loop {
            let unread = states.wait_for(|state| state.abandoned || state.reader.is_none()).await;
            let Ok((abandoned, left)) = unread.map(|state| (state.abandoned, state.left)) else { return };
            if abandoned {
                return;
            }
            let back = states.wait_for(|state| state.abandoned || state.reader.is_some());
            if timeout_at(left + grace, back).await.is_err() {
                let abandon = |state: &mut StreamState| {
                    // A reader may have attached between the timeout and this check.
                    state.abandoned = state.reader.is_none() && state.left == left;
                    state.abandoned
                };
                if self.state.send_if_modified(abandon) {
                    return;
                }
            }
        }
    }

    /// Attaches a new reader, which has received the events up to number `after`, and replaces the previous reader.
    /// Returns `None` if nothing is left to read.
    ///
    /// # Errors
    /// 400 for events that were never sent, 404 if the stream was abandoned, 410 if missed events are no longer
    /// buffered.
    pub(super) fn attach(&self, after: u64) -> Result<Option<u64>, ApiError> {
        let mut attached = Ok(None);
        self.state.send_if_modified(|state| {
            attached = state.admit(after).map(|admitted| {
                admitted.then(|| {
                    state.readers += 1;
                    state.reader = Some(state.readers);
                    state.readers
                })
            });
            // A refusal changes nothing, and wakes nobody.
            matches!(attached, Ok(Some(_)))
        });
        attached
    }

    /// Detaches a reader.
    pub(super) fn detach(&self, reader: u64) {
        self.state.send_if_modified(|state| {
            // A reader that was replaced detaches late, and must not detach its successor.
            let mine = state.reader == Some(reader);
            if mine {
                state.reader = None;
                state.left = Instant::now();
            }
            mine
        });
    }
}

impl StreamState {
    /// Returns `true` if there is anything left for a reader that has received the events up to number `after`.
    fn admit(&self, after: u64) -> Result<bool, ApiError> {
        if self.abandoned {
            let message = "the stream is gone: no client reconnected in time, or its own gave it up";
            return Err(ApiError::new(Code::NotFound, message));
        }
        let last = self.log.last();
        if after > last {
            let message = format!("event {after} has not been sent yet: the last one is {last}");
            return Err(ApiError::invalid("last-event-id", message));
        }
        self.log.holds(after).map_err(|gone| {
            let message =
                format!("the events after {after} are no longer buffered: the first available one is {}", gone.first);
            ApiError::new(Code::EventsGone, message).with_param("last-event-id")
        })?;
        Ok(!(self.over && after == last))
    }
}
