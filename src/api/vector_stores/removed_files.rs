//! Times of files that were removed from a vector store.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of removed files that are remembered.
const MAX_REMOVED: usize = 1024;

/// Last removed files of a store. A client that removes the files of each page continues behind one that is gone.
#[derive(Debug, Default)]
pub(super) struct RemovedFiles {
    /// IDs, and times at which the files were added, in seconds since 1970.
    files: Mutex<VecDeque<(String, u64)>>,
}

impl RemovedFiles {
    /// Remembers a file, in place of the oldest one if there are too many.
    pub(super) fn add(&self, id: &str, created_at: u64) {
        let mut files = self.lock();
        if files.len() == MAX_REMOVED {
            files.pop_front();
        }
        files.push_back((id.to_owned(), created_at));
    }

    /// Returns the time at which the removed file `id` was added last. `None` for a file that is not remembered.
    pub(super) fn created_at(&self, id: &str) -> Option<u64> {
        let files = self.lock();
        files.iter().rev().find(|(removed, _)| removed == id).map(|(_, created_at)| *created_at)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, u64)>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_removals_are_remembered() {
        let removed = RemovedFiles::default();
        removed.add("a", 1);
        removed.add("b", 2);
        removed.add("b", 3);
        assert_eq!(
            (removed.created_at("a"), removed.created_at("b"), removed.created_at("c")),
            (Some(1), Some(3), None)
        );
        (0..MAX_REMOVED - 2).for_each(|number| removed.add(&number.to_string(), 4));
        assert_eq!((removed.created_at("a"), removed.created_at("b")), (None, Some(3)));
    }
}
