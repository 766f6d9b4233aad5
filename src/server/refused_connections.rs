//! Connections beyond the limit.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Maximum number of connections beyond the limit that are held at a time.
const HELD: usize = 64;

/// Maximum number of their open files: an ended connection keeps its file until its task has been dropped.
pub(super) const FILES: usize = 2 * HELD;

/// Connections beyond the limit. A new one ends the oldest, so that a probe gets its response however many clients hold
/// connections on which they send nothing.
#[derive(Debug)]
pub(super) struct RefusedConnections {
    slots: Arc<Semaphore>,
    held: VecDeque<AbortHandle>,
}

impl Default for RefusedConnections {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(FILES)), held: VecDeque::new() }
    }
}

impl RefusedConnections {
    /// Returns a slot for one more connection. `None` if too many are still being closed.
    pub(super) fn slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Holds the task of a connection, and ends the oldest one if there are too many.
    pub(super) fn hold(&mut self, task: AbortHandle) {
        self.held.retain(|task| !task.is_finished());
        if self.held.len() >= HELD
            && let Some(oldest) = self.held.pop_front()
        {
            oldest.abort();
        }
        self.held.push_back(task);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_new_connection_ends_the_oldest() {
        let mut refused = RefusedConnections::default();
        let mut tasks = Vec::new();
        for _ in 0..HELD + 1 {
            let slot = refused.slot().unwrap();
            let task = tokio::spawn(async move {
                let _slot = slot;
                std::future::pending::<()>().await;
            });
            refused.hold(task.abort_handle());
            tasks.push(task);
        }
        let newest = tasks.pop().unwrap();
        assert!(tasks.remove(0).await.unwrap_err().is_cancelled());
        assert!(!newest.is_finished() && tasks.iter().all(|task| !task.is_finished()));
        assert_eq!(refused.slots.available_permits(), FILES - HELD);
    }

    #[tokio::test]
    async fn connections_that_are_being_closed_are_bounded_too() {
        let refused = RefusedConnections::default();
        let slots: Vec<_> = std::iter::from_fn(|| refused.slot()).collect();
        assert_eq!(slots.len(), FILES);
    }
}
