//! How the server goes down: it stops taking work, lets running work finish, and at a deadline tells what is left.

use std::sync::Arc;

use tokio::sync::watch;

/// Where a server stands between its start and its end. Phases only go forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Takes requests.
    Serving,
    /// Refuses new work with 503; running work goes on.
    Draining,
    /// The deadline has passed: running work ends with an error.
    Expired,
}

/// The phase of one server and a count of its running work; clones share both.
#[derive(Debug, Clone)]
pub struct Drain {
    phase: Arc<watch::Sender<Phase>>,
    running: Arc<watch::Sender<usize>>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Serving)), running: Arc::new(watch::Sender::new(0)) }
    }
}

impl Drain {
    /// Moves on to `phase`; an earlier phase than the present one changes nothing.
    pub fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
    }

    /// The present phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Returns once `phase` or a later one is reached.
    pub async fn reached(&self, phase: Phase) {
        // The sender lives in `self`, so the wait can end only by its condition.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Counts one piece of work until the guard is dropped.
    pub fn enter(&self) -> Running {
        self.running.send_modify(|running| *running += 1);
        Running(self.running.clone())
    }

    /// How much work is running.
    pub fn running(&self) -> usize {
        *self.running.borrow()
    }

    /// Returns once nothing is running.
    pub async fn idle(&self) {
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }
}

/// One piece of running work; a drain waits for it to be dropped.
#[derive(Debug)]
pub struct Running(Arc<watch::Sender<usize>>);

impl Drop for Running {
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
        drain.advance(Phase::Expired);
        drain.advance(Phase::Draining);
        assert_eq!(drain.phase(), Phase::Expired);
        drain.reached(Phase::Draining).await;
    }

    #[tokio::test]
    async fn idle_waits_for_the_last_guard() {
        let drain = Drain::default();
        let (first, second) = (drain.enter(), drain.enter());
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
