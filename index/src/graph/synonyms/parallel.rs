//! Distributes a list of work over threads, a block at a time.

use std::sync::{Mutex, PoisonError};

use crate::error::IndexError;

/// Calls `work` once for every item, in blocks of at most `block`, on `threads` threads. Starts no further block after
/// an error.
pub(super) fn share<T: Send>(
    items: &mut [T],
    block: usize,
    threads: usize,
    work: impl Fn(&mut [T]) -> Result<(), IndexError> + Sync,
) -> Result<(), IndexError> {
    let blocks = Mutex::new(items.chunks_mut(block));
    // The lock is held only while taking a block.
    let take = || blocks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some(block) = take() {
            if let Err(error) = work(block) {
                while take().is_some() {}
                return Err(error);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.max(1)).map(|_| scope.spawn(run)).collect();
        // A panic in another thread is a bug, and is propagated.
        let joined =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(run()).chain(joined).collect()
    })
}
