//! What an episode and the readers of its stream share.

use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::log::Log;
use crate::api::auth::{Caller, KeyId};
use crate::api::error::{ApiError, Code};

/// One stream: its events, and who reads them.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Whose it is: nobody else may read it.
    pub(super) owner: Option<KeyId>,
    /// When its episode's time is over.
    pub(crate) end: Option<Instant>,
    pub(super) state: watch::Sender<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) log: Log,
    /// The reader that has it now; readers are numbered.
    pub(super) reader: Option<u64>,
    readers: u64,
    /// When the last reader went.
    left: Instant,
    /// True when no more events come.
    pub(super) over: bool,
    /// True when nobody came back in time: what is held is not all there should be.
    abandoned: bool,
}

impl Stream {
    /// One that `caller` has begun, with room for events of about `bytes` bytes.
    pub(super) fn new(caller: &Caller, bytes: usize) -> Stream {
        let state = State {
            log: Log::new(bytes),
            reader: None,
            readers: 0,
            left: Instant::now(),
            over: false,
            abandoned: false,
        };
        Stream { owner: caller.key.clone(), end: caller.lifetime.end(), state: watch::Sender::new(state) }
    }

    /// Adds the next event.
    pub(super) fn push(&self, event: Bytes) {
        self.state.send_modify(|state| state.log.push(event));
    }

    /// The number of the event that comes next.
    pub(super) fn next(&self) -> u64 {
        self.state.borrow().log.last() + 1
    }

    /// What its events take that are held.
    pub(super) fn bytes(&self) -> usize {
        self.state.borrow().log.bytes()
    }

    /// No more events come.
    pub(super) fn end(&self) {
        self.state.send_modify(|state| state.over = true);
    }

    /// Whether no more events come and all of them were given to a reader.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state.borrow();
        state.over && state.log.is_sent()
    }

    /// Returns once another event may come.
    pub(super) async fn room(&self) {
        // The sender lives in `self`, so the wait can end only by its condition.
        let _ = self.state.subscribe().wait_for(|state| state.log.has_room()).await;
    }

    /// Returns once nobody has read for `grace`. Whoever comes after that finds it abandoned.
    pub(super) async fn abandoned(&self, grace: Duration) {
        let mut states = self.state.subscribe();
        loop {
            let Ok(left) = states.wait_for(|state| state.reader.is_none()).await.map(|state| state.left) else {
                return;
            };
            let back = states.wait_for(|state| state.reader.is_some());
            if timeout_at(left + grace, back).await.is_err() {
                let abandon = |state: &mut State| {
                    // One may have come while nobody looked.
                    state.abandoned = state.reader.is_none() && state.left == left;
                    state.abandoned
                };
                if self.state.send_if_modified(abandon) {
                    return;
                }
            }
        }
    }

    /// Gives the stream to a new reader, who has the events up to number `after`; the one before gets no more. None where
    /// nothing is left to read.
    ///
    /// # Errors
    /// 400 for events that were never sent, 404 when it was given up, 410 when some that were missed are not held any
    /// more.
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
            matches!(attached, Ok(Some(_)))
        });
        attached
    }

    /// The reader has gone.
    pub(super) fn detach(&self, reader: u64) {
        self.state.send_if_modified(|state| {
            let mine = state.reader == Some(reader);
            if mine {
                state.reader = None;
                state.left = Instant::now();
            }
            mine
        });
    }
}

impl State {
    /// Whether there is anything for a reader who has the events up to number `after`.
    fn admit(&self, after: u64) -> Result<bool, ApiError> {
        if self.abandoned {
            return Err(ApiError::new(Code::NotFound, "nobody came back for this stream in time: it was given up"));
        }
        let last = self.log.last();
        if after > last {
            let message = format!("event {after} has not been sent yet: the last one is {last}");
            return Err(ApiError::invalid("last-event-id", message));
        }
        self.log.holds(after).map_err(|gone| {
            let message = format!("the events after {after} are not held any more: the first one is {}", gone.first);
            ApiError::new(Code::EventsGone, message).with_param("last-event-id")
        })?;
        Ok(!(self.over && after == last))
    }
}
