//! State shared by all tasks of a run: the server's address, its current process, and the end of the load.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::plan::ChaosPlan;
use crate::tally::Tally;

/// Shared state of one run.
#[derive(Debug)]
pub(crate) struct RunShared {
    /// Parameters of the run.
    pub(crate) plan: ChaosPlan,
    /// Address that every process of the server listens on.
    pub(crate) address: SocketAddr,
    /// Counts of the run.
    pub(crate) tally: Tally,
    history: Mutex<ServerHistory>,
    over: watch::Sender<bool>,
}

/// Processes of the server so far.
#[derive(Debug)]
struct ServerHistory {
    /// The running process and its start time. `None` between two processes.
    current: Option<(u32, Instant)>,
    /// Number of processes so far.
    count: usize,
    /// Downtimes: from each SIGTERM until the next process was ready.
    downtimes: Vec<(Instant, Option<Instant>)>,
}

impl RunShared {
    /// Creates the state of a run whose server is the process `pid`.
    pub(crate) fn new(plan: ChaosPlan, address: SocketAddr, pid: u32) -> Arc<RunShared> {
        let history = ServerHistory { current: Some((pid, Instant::now())), count: 1, downtimes: Vec::new() };
        let tally = Tally::default();
        let over = watch::Sender::new(false);
        Arc::new(RunShared { plan, address, tally, history: Mutex::new(history), over })
    }

    fn history(&self) -> MutexGuard<'_, ServerHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that SIGTERM is about to be sent.
    pub(crate) fn stopping(&self) {
        let mut history = self.history();
        history.current = None;
        history.downtimes.push((Instant::now(), None));
    }

    /// Records that the next process is ready.
    pub(crate) fn ready(&self, pid: u32) {
        let mut history = self.history();
        history.current = Some((pid, Instant::now()));
        history.count += 1;
        if let Some((_, end)) = history.downtimes.last_mut() {
            *end = Some(Instant::now());
        }
    }

    /// Number, process ID and age of the running process.
    pub(crate) fn current_process(&self) -> Option<(usize, u32, Duration)> {
        let history = self.history();
        history.current.map(|(pid, since)| (history.count, pid, since.elapsed()))
    }

    /// Returns `true` if the server was down at any time since `since`. Connections made shortly before a shutdown may
    /// fail as well.
    pub(crate) fn was_down(&self, since: Instant) -> bool {
        self.history().downtimes.iter().any(|(_, end)| end.is_none_or(|end| end >= since))
    }

    /// Ends the load.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
    }

    /// Returns `true` if the load is over.
    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits for `time`, at most until the end of the load. Returns `true` if the load goes on.
    pub(crate) async fn pause(&self, time: Duration) -> bool {
        let mut over = self.over.subscribe();
        tokio::time::timeout(time, over.wait_for(|over| *over)).await.is_err()
    }
}
