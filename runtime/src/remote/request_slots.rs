//! Bound of the number of requests in flight.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Semaphore that limits the number of requests in flight.
#[derive(Debug)]
pub(super) struct RequestSlots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// Slot held by one request. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct RequestSlot<'a>(&'a RequestSlots);

impl RequestSlots {
    /// Creates `count` slots.
    pub(super) fn new(count: usize) -> Self {
        RequestSlots { free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Waits for a free slot. `None` if `patience` passes first.
    pub(super) fn take(&self, patience: Duration) -> Option<RequestSlot<'_>> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_timeout_while(free, patience, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(RequestSlot(self))
    }
}

impl Drop for RequestSlot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::thread;

    use super::*;

    #[test]
    fn a_slot_is_waited_for_and_given_back() {
        let slots = RequestSlots::new(1);
        let held = slots.take(Duration::ZERO).unwrap();
        assert!(slots.take(Duration::from_millis(5)).is_none());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| slots.take(Duration::from_secs(20)).is_some());
            drop(held);
            assert!(waiting.join().unwrap());
        });
        assert!(slots.take(Duration::ZERO).is_some());
    }
}
