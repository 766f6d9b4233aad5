//! Log of a response's stream, which clients can follow from any event on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use futures::Stream;
use tokio::sync::watch;

use super::event::ResponseEvent;
use crate::api::sse::Frame;

/// Messages of one stream. The sequence number of a message is its index.
#[derive(Debug)]
pub(super) struct EventLog {
    messages: Mutex<Messages>,
    /// `true` once the last message is logged. Also notifies followers of new messages.
    ended: watch::Sender<bool>,
}

/// Messages and their total size.
#[derive(Debug, Default)]
struct Messages {
    list: Vec<Bytes>,
    bytes: usize,
}

impl Default for EventLog {
    fn default() -> Self {
        Self { messages: Mutex::default(), ended: watch::Sender::new(false) }
    }
}

impl EventLog {
    /// Appends events and notifies followers.
    pub(super) fn push(&self, events: &[ResponseEvent]) {
        self.add(events);
        // The value stays; sending it again wakes the followers.
        self.ended.send_modify(|_| {});
    }

    /// Appends events without notifying followers; [`end`](Self::end) does.
    pub(super) fn add(&self, events: &[ResponseEvent]) {
        let mut messages = self.messages();
        for event in events {
            let mut frame = Frame::default();
            frame.event(event.event.name(), event);
            let message = frame.take();
            messages.bytes += message.len();
            messages.list.push(message);
        }
    }

    /// Marks the log as complete.
    pub(super) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until the log is complete.
    pub(super) async fn ended(&self) {
        // The sender lives in `self`, so the wait can end only by its condition.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Streams the messages from number `from` on, including those yet to come.
    pub(super) fn follow(self: Arc<Self>, from: usize) -> impl Stream<Item = Bytes> + Send {
        async_stream::stream! {
            let mut next = from;
            let mut more = self.ended.subscribe();
            loop {
                // Read before the messages, so a message logged in between triggers another round.
                let ended = *more.borrow_and_update();
                let new = self.messages().list.get(next..).unwrap_or_default().to_vec();
                next += new.len();
                if !new.is_empty() {
                    yield Bytes::from(new.concat());
                }
                if ended || more.changed().await.is_err() {
                    break;
                }
            }
        }
    }

    /// Returns the messages so far, as text.
    pub(super) fn messages_so_far(&self) -> Vec<String> {
        let text = |message: &Bytes| String::from_utf8_lossy(message).into_owned();
        self.messages().list.iter().map(text).collect()
    }

    /// Returns the total size of the messages.
    pub(super) fn bytes(&self) -> usize {
        self.messages().bytes
    }

    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::StreamExt;

    use super::super::event::ResponseEventKind;
    use super::*;

    fn event(sequence_number: u64) -> ResponseEvent {
        let event = ResponseEventKind::Error { code: "x", message: String::new(), param: None };
        ResponseEvent { event, sequence_number }
    }

    fn numbers(bytes: &[Bytes]) -> Vec<u64> {
        let text = String::from_utf8(bytes.concat()).unwrap();
        let json = |message: &str| -> serde_json::Value {
            serde_json::from_str(message.split_once("data: ").unwrap().1).unwrap()
        };
        text.split_terminator("\n\n").map(|message| json(message)["sequence_number"].as_u64().unwrap()).collect()
    }

    #[tokio::test]
    async fn followers_miss_and_repeat_nothing_wherever_they_begin() {
        let log = Arc::new(EventLog::default());
        log.push(&[event(0), event(1)]);
        let early = tokio::spawn(log.clone().follow(0).collect::<Vec<_>>());
        let late = tokio::spawn(log.clone().follow(1).collect::<Vec<_>>());
        let beyond = tokio::spawn(log.clone().follow(9).collect::<Vec<_>>());
        for number in 2..20 {
            log.push(&[event(number)]);
            tokio::task::yield_now().await;
        }
        log.end();
        log.ended().await;
        assert_eq!(numbers(&early.await.unwrap()), (0..20).collect::<Vec<_>>());
        assert_eq!(numbers(&late.await.unwrap()), (1..20).collect::<Vec<_>>());
        assert_eq!(numbers(&beyond.await.unwrap()), (9..20).collect::<Vec<_>>());
        let after: Vec<Bytes> = log.clone().follow(18).collect().await;
        assert_eq!(numbers(&after), [18, 19]);
        assert_eq!(log.bytes(), log.follow(0).collect::<Vec<_>>().await.concat().len());
    }
}
