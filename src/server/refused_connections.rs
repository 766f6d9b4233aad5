//! Connections beyond the limit.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Maximum number of connections beyond the limit that are held at a time.
pub(super) const HELD: usize = 64;

/// Connections beyond the limit. Once all slots are taken, a new connection ends the oldest one. A probe thus gets its
/// response even if many clients hold silent connections.
#[derive(Debug)]
pub(super) struct RefusedConnections {
    slots: Arc<Semaphore>,
    held: VecDeque<AbortHandle>,
}

impl Default for RefusedConnections {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(HELD)), held: VecDeque::new() }
    }
}

impl RefusedConnections {
    /// Returns a slot for one more connection. If there is none, ends the oldest connection and waits until it is
    /// closed, so the number of open files stays bounded.
    pub(super) async fn slot(&mut self) -> Option<OwnedSemaphorePermit> {
        self.held.retain(|task| !task.is_finished());
        if self.slots.available_permits() == 0
            && let Some(oldest) = self.held.pop_front()
        {
            oldest.abort();
        }
        // The semaphore is never closed, so acquiring can only succeed.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    /// Holds the task of a connection, which keeps its slot.
    pub(super) fn hold(&mut self, task: AbortHandle) {
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
            let slot = refused.slot().await.unwrap();
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
        assert_eq!(refused.slots.available_permits(), 0);
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_gives_its_slot_back() {
        let mut refused = RefusedConnections::default();
        for _ in 0..2 * HELD {
            let slot = refused.slot().await.unwrap();
            let task = tokio::spawn(async move { drop(slot) });
            refused.hold(task.abort_handle());
            task.await.unwrap();
        }
        assert_eq!(refused.slots.available_permits(), HELD);
        assert!(refused.slot().await.is_some() && refused.held.is_empty());
    }
}
