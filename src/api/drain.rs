//! Graceful shutdown: the server stops accepting work, lets running work finish, and fails what is left at a deadline.

use std::sync::Arc;

use tokio::sync::watch;

/// Phase of a server's life. Phases only move forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainPhase {
    /// The server accepts requests.
    Serving,
    /// New work is refused with 503; running work continues.
    Draining,
    /// The deadline has passed: running work ends with an error.
    Expired,
}

/// Current phase of a server and the number of its running tasks; clones share both.
#[derive(Debug, Clone)]
pub struct Drain {
    phase: Arc<watch::Sender<DrainPhase>>,
    running: Arc<watch::Sender<usize>>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { phase: Arc::new(watch::Sender::new(DrainPhase::Serving)), running: Arc::new(watch::Sender::new(0)) }
    }
}

impl Drain {
    /// Moves on to `phase`. Has no effect if the current phase is the same or a later one.
    pub fn advance(&self, phase: DrainPhase) {
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
    }

    /// Returns the current phase.
    pub fn phase(&self) -> DrainPhase {
        *self.phase.borrow()
    }

    /// Waits until `phase` or a later one is reached.
    pub async fn reached(&self, phase: DrainPhase) {
        // The sender lives in `self`, so the wait can end only by its condition.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Counts one running task until the returned guard is dropped.
    pub fn enter(&self) -> RunningGuard {
        self.running.send_modify(|running| *running += 1);
        RunningGuard(self.running.clone())
    }

    /// Returns the number of running tasks.
    pub fn running(&self) -> usize {
        *self.running.borrow()
    }

    /// Waits until no task is running.
    pub async fn idle(&self) {
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }
}

/// Guard of one running task; a drain waits until it is dropped.
#[derive(Debug)]
pub struct RunningGuard(Arc<watch::Sender<usize>>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn phases_go_forward_only() {
        let drain = Drain::default();
        drain.advance(DrainPhase::Expired);
        drain.advance(DrainPhase::Draining);
        assert_eq!(drain.phase(), DrainPhase::Expired);
        drain.reached(DrainPhase::Draining).await;
    }

    #[tokio::test]
    async fn idle_waits_for_the_last_guard() {
        let drain = Drain::default();
        let first = drain.enter();
        let second = drain.enter();
        drop(first);
        assert_eq!(drain.running(), 1);
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        assert!(waiting.await.is_ok());
    }
}
