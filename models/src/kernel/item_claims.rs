//! Dynamic distribution of a region's items among threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::team::{CacheAligned, share};

/// Number of claimed items in each thread's share.
pub(super) type Cursors = [CacheAligned<AtomicUsize>];

/// One thread's iterator over the items of a region; see [`Team::sweep`](super::Team::sweep).
#[derive(Debug)]
pub(crate) struct ItemClaims<'a> {
    cursors: &'a Cursors,
    count: usize,
    worker: usize,
    /// Number of shares, starting with the thread's own, that are known to be used up.
    passed: usize,
}

impl<'a> ItemClaims<'a> {
    pub(super) fn new(cursors: &'a Cursors, count: usize, worker: usize) -> Self {
        Self { cursors, count, worker, passed: 0 }
    }

    /// Index of the thread in the team.
    pub(crate) fn worker(&self) -> usize {
        self.worker
    }
}

impl Iterator for ItemClaims<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let shares = self.cursors.len();
        while self.passed < shares {
            let owner = (self.worker + self.passed) % shares;
            let range = share(self.count, owner, shares);
            // Relaxed suffices: a claim publishes no data, and the region's start and end synchronize the threads.
            let claimed = self.cursors[owner].0.fetch_add(1, Ordering::Relaxed);
            if claimed < range.len() {
                return Some(range.start + claimed);
            }
            self.passed += 1;
        }
        None
    }
}
