//! Event buffer of one stream: events that a client may have missed, and events not sent yet. The first event has
//! number 1.

use std::collections::VecDeque;

use axum::body::Bytes;

/// Bounded event buffer of one stream. Half of the room is for sent events, which may have been lost, and half for
/// unsent ones. The oldest sent events are evicted; when the unsent ones fill their half, the buffer is full.
#[derive(Debug)]
pub(super) struct EventBuffer {
    /// Events from number `first` on.
    events: VecDeque<Bytes>,
    first: u64,
    /// Number of the last event sent.
    sent: u64,
    /// Sizes in bytes of the sent and the unsent events.
    bytes: (usize, usize),
    half: usize,
}

/// Error for events that are no longer buffered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone {
    /// Number of the first event still buffered.
    pub(super) first: u64,
}

impl EventBuffer {
    /// Creates a buffer for about `bytes` bytes of events.
    pub(super) fn new(bytes: usize) -> EventBuffer {
        // At least 1 byte, so an empty buffer always accepts an event.
        EventBuffer { events: VecDeque::new(), first: 1, sent: 0, bytes: (0, 0), half: bytes.div_ceil(2).max(1) }
    }

    /// Returns the number of the last event; 0 before the first.
    pub(super) fn last(&self) -> u64 {
        self.first + self.events.len() as u64 - 1
    }

    /// Returns the size of the buffered events.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.0 + self.bytes.1
    }

    /// Returns `true` if every event was sent.
    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.last()
    }

    /// Returns `true` if there is room for another event. Even an event larger than the remaining room is accepted.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.1 < self.half
    }

    /// Appends an event.
    pub(super) fn push(&mut self, event: Bytes) {
        self.bytes.1 += event.len();
        self.events.push_back(event);
    }

    /// Checks that all events after number `after` are still buffered.
    pub(super) fn holds(&self, after: u64) -> Result<(), Gone> {
        // `admit` refuses numbers beyond the last event first, so the sum does not overflow.
        if after + 1 >= self.first { Ok(()) } else { Err(Gone { first: self.first }) }
    }

    /// Returns at most `most` events after number `after`, concatenated, and the number of the last of them, and counts
    /// them as sent. Returns nothing if they are no longer buffered or do not exist yet.
    pub(super) fn take(&mut self, after: u64, most: usize) -> (Vec<u8>, u64) {
        let Some(skip) = (after + 1).checked_sub(self.first) else { return (Vec::new(), after) };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let mut joined = Vec::new();
        let mut last = after;
        for event in self.events.iter().skip(skip).take(most) {
            joined.extend_from_slice(event);
            last += 1;
        }
        self.send(last);
        (joined, last)
    }

    /// Counts the events up to `last` as sent.
    fn send(&mut self, last: u64) {
        while self.sent < last.min(self.last()) {
            self.sent += 1;
            let size = self.size(self.sent);
            self.bytes = (self.bytes.0 + size, self.bytes.1 - size);
        }
        while self.bytes.0 > self.half && self.first <= self.sent {
            self.bytes.0 -= self.size(self.first);
            self.events.pop_front();
            self.first += 1;
        }
    }

    fn size(&self, number: u64) -> usize {
        let index = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        self.events.get(index).map_or(0, Bytes::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum BufferStep {
        Push(usize),
        Take(usize),
        /// A new reader has received everything but the last few events.
        Return(u64),
    }

    fn step() -> impl Strategy<Value = BufferStep> {
        prop_oneof![
            (1..30usize).prop_map(BufferStep::Push),
            (1..5usize).prop_map(BufferStep::Take),
            (0..6u64).prop_map(BufferStep::Return)
        ]
    }

    proptest! {
        /// A reader gets every event once and in order, or is told that some are gone; memory is bounded all the while.
        #[test]
        fn nothing_is_lost_in_silence(bytes in 2..80usize, steps in prop::collection::vec(step(), 0..80)) {
            let mut log = EventBuffer::new(bytes);
            let mut all: Vec<Bytes> = Vec::new();
            let mut read = 0u64;
            for step in steps {
                match step {
                    BufferStep::Push(size) if log.has_room() => {
                        let event = Bytes::from(vec![all.len() as u8; size]);
                        all.push(event.clone());
                        log.push(event);
                    }
                    BufferStep::Push(_) => {}
                    BufferStep::Take(most) => {
                        let (joined, last) = log.take(read, most);
                        let expected = all[read as usize..].iter().take(most).flatten().copied().collect::<Vec<u8>>();
                        prop_assert_eq!(joined, expected);
                        prop_assert!(last as usize == all.len() || (last - read) as usize == most);
                        read = last;
                    }
                    BufferStep::Return(missed) => {
                        let after = read.saturating_sub(missed);
                        match log.holds(after) {
                            Ok(()) => read = after,
                            Err(gone) => {
                                prop_assert!(after + 1 < gone.first && gone.first <= read + 1);
                                let held: usize = all[gone.first as usize - 2..].iter().map(Bytes::len).sum();
                                prop_assert!(held > bytes.div_ceil(2), "it was given up while there was room for it");
                            }
                        }
                    }
                }
                prop_assert_eq!(log.last() as usize, all.len());
                let held: usize = log.events.iter().map(Bytes::len).sum();
                prop_assert_eq!(held, log.bytes());
                prop_assert!(log.bytes.0 <= log.half && log.bytes.1 < log.half + 30);
            }
        }
    }

    #[test]
    fn what_was_not_sent_fills_the_room_and_what_was_makes_way() {
        let mut log = EventBuffer::new(8);
        log.push(Bytes::from_static(b"abcd"));
        assert!(!log.has_room());
        assert_eq!(log.take(0, 9), (b"abcd".to_vec(), 1));
        log.push(Bytes::from_static(b"ef"));
        assert!(log.has_room() && log.holds(0).is_ok());
        assert_eq!(log.take(0, 9), (b"abcdef".to_vec(), 2));
        assert_eq!(log.holds(0), Err(Gone { first: 2 }));
        assert_eq!(log.take(1, 9), (b"ef".to_vec(), 2));
        assert_eq!(log.take(2, 9), (Vec::new(), 2));
    }
}
