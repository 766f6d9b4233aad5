//! The events of one stream, numbered from 1: those a client may have missed, and those it has not been sent.

use std::collections::VecDeque;

use axum::body::Bytes;

/// The events of one stream, bounded: half the room is for events that were sent and may have been lost, half for those
/// that wait. Of the sent ones the oldest go first; when the others fill their half, there is no room for more.
#[derive(Debug)]
pub(super) struct Log {
    /// Events from `first` on.
    events: VecDeque<Bytes>,
    first: u64,
    /// The last event that was given out.
    sent: u64,
    /// What the events up to `sent` take, and those after it.
    bytes: (usize, usize),
    half: usize,
}

/// Events that are not held any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone {
    /// The first one that is.
    pub(super) first: u64,
}

impl Log {
    /// Room for events of about `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Log {
        Log { events: VecDeque::new(), first: 1, sent: 0, bytes: (0, 0), half: bytes.div_ceil(2).max(1) }
    }

    /// The number of the last event, 0 before the first.
    pub(super) fn last(&self) -> u64 {
        self.first + self.events.len() as u64 - 1
    }

    /// Bytes of the events that are held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.0 + self.bytes.1
    }

    /// Whether every event was given out.
    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.last()
    }

    /// Whether another event may come. One that is larger than the room left is taken as well.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.1 < self.half
    }

    /// Adds the event after the last one.
    pub(super) fn push(&mut self, event: Bytes) {
        self.bytes.1 += event.len();
        self.events.push_back(event);
    }

    /// Whether all events after number `after` are held.
    pub(super) fn holds(&self, after: u64) -> Result<(), Gone> {
        if after + 1 >= self.first { Ok(()) } else { Err(Gone { first: self.first }) }
    }

    /// At most `most` events after number `after`, joined, and the number of the last of them. From then on they count
    /// as sent. Nothing where they are not held any more, or do not exist yet.
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
    enum Step {
        Push(usize),
        Take(usize),
        /// A new reader that has everything but the last few events.
        Return(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..30usize).prop_map(Step::Push),
            (1..5usize).prop_map(Step::Take),
            (0..6u64).prop_map(Step::Return)
        ]
    }

    proptest! {
        /// A reader gets every event once and in order, or is told that some are gone; memory is bounded all the while.
        #[test]
        fn nothing_is_lost_in_silence(bytes in 2..80usize, steps in prop::collection::vec(step(), 0..80)) {
            let mut log = Log::new(bytes);
            let mut all: Vec<Bytes> = Vec::new();
            let mut read = 0u64;
            for step in steps {
                match step {
                    Step::Push(size) if log.has_room() => {
                        let event = Bytes::from(vec![all.len() as u8; size]);
                        all.push(event.clone());
                        log.push(event);
                    }
                    Step::Push(_) => {}
                    Step::Take(most) => {
                        let (joined, last) = log.take(read, most);
                        let expected = all[read as usize..].iter().take(most).flatten().copied().collect::<Vec<u8>>();
                        prop_assert_eq!(joined, expected);
                        prop_assert!(last as usize == all.len() || (last - read) as usize == most);
                        read = last;
                    }
                    Step::Return(missed) => {
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
        let mut log = Log::new(8);
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
