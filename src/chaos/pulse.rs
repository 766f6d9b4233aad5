//! What all tasks of a run share: where the server is, whether it is there, and when it is over.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::plan::Plan;
use crate::tally::Tally;

/// One run, as its tasks see it.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// What it is to be.
    pub(crate) plan: Plan,
    /// Where every life of the server listens.
    pub(crate) address: SocketAddr,
    /// What was counted.
    pub(crate) tally: Tally,
    lives: Mutex<Lives>,
    over: watch::Sender<bool>,
}

/// The server's lives so far.
#[derive(Debug)]
struct Lives {
    /// The process that is there now, and when it began; nothing between two lives.
    now: Option<(u32, Instant)>,
    /// How many there were.
    count: usize,
    /// From each SIGTERM to the moment the next life was ready.
    away: Vec<(Instant, Option<Instant>)>,
}

impl Pulse {
    /// A run whose server is the process `pid`.
    pub(crate) fn new(plan: Plan, address: SocketAddr, pid: u32) -> Arc<Pulse> {
        let lives = Lives { now: Some((pid, Instant::now())), count: 1, away: Vec::new() };
        let (tally, over) = (Tally::default(), watch::Sender::new(false));
        Arc::new(Pulse { plan, address, tally, lives: Mutex::new(lives), over })
    }

    fn lives(&self) -> MutexGuard<'_, Lives> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SIGTERM is about to be sent.
    pub(crate) fn falls(&self) {
        let mut lives = self.lives();
        lives.now = None;
        lives.away.push((Instant::now(), None));
    }

    /// The next life is ready.
    pub(crate) fn rises(&self, pid: u32) {
        let mut lives = self.lives();
        lives.now = Some((pid, Instant::now()));
        lives.count += 1;
        if let Some((_, end)) = lives.away.last_mut() {
            *end = Some(Instant::now());
        }
    }

    /// The number of the life that runs, its process, and its age.
    pub(crate) fn life(&self) -> Option<(usize, u32, Duration)> {
        let lives = self.lives();
        lives.now.map(|(pid, since)| (lives.count, pid, since.elapsed()))
    }

    /// Whether the server was away at any time since then. Connections that were made a moment before an end may wait in
    /// vain as well.
    pub(crate) fn was_away(&self, since: Instant) -> bool {
        self.lives().away.iter().any(|(_, end)| end.is_none_or(|end| end >= since))
    }

    /// Ends the load.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
    }

    /// Whether the load is over.
    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits, but not beyond the end of the load; whether it goes on.
    pub(crate) async fn pause(&self, time: Duration) -> bool {
        let mut over = self.over.subscribe();
        tokio::time::timeout(time, over.wait_for(|over| *over)).await.is_err()
    }
}
