//! Counting semaphore with a deadline for waiting.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Semaphore that limits the number of concurrent searches.
#[derive(Debug)]
pub(super) struct SearchSlots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// Slot held by a search. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct SearchSlot<'a>(&'a SearchSlots);

impl SearchSlots {
    pub(super) fn new(count: usize) -> SearchSlots {
        SearchSlots { free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Waits for a free slot. `None` if `deadline` passes first.
    pub(super) fn take(&self, deadline: Option<Instant>) -> Option<SearchSlot<'_>> {
        let mut free = self.lock();
        while *free == 0 {
            free = match deadline {
                None => self.freed.wait(free).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    self.freed.wait_timeout(free, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *free -= 1;
        Some(SearchSlot(self))
    }

    /// Locks the counter. A panic of another holder cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SearchSlot<'_> {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn no_more_than_so_many_hold_one_at_once() {
        let slots = SearchSlots::new(3);
        let inside = AtomicUsize::new(0);
        let most = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _slot = slots.take(None).unwrap();
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!((1..=3).contains(&most.into_inner()));
        assert_eq!(*slots.lock(), 3);
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let slots = SearchSlots::new(1);
        let held = slots.take(None).unwrap();
        assert!(slots.take(Some(Instant::now() + Duration::from_millis(5))).is_none());
        assert!(slots.take(Some(Instant::now() - Duration::from_millis(5))).is_none());
        drop(held);
        assert!(slots.take(Some(Instant::now())).is_some());
    }
}
