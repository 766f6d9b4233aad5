//! State shared by all tasks of a run: the server's address, its current process, and the end of the load.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client_keys::ClientKeys;
use crate::http_client::Target;
use crate::plan::ChaosPlan;
use crate::tally::Tally;

/// Time after a flood in which a busy server may still count its connections.
const FLOOD_REST: Duration = Duration::from_secs(10);

/// Condition under which some requests may fail that must otherwise succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// The server is down between two processes.
    Down,
    /// The process got SIGKILL, which breaks off every response.
    Killed,
    /// A file of the index is damaged.
    Damaged,
    /// The disk of the index is full.
    FullDisk,
    /// Other clients hold all connections.
    Flood,
}

/// Running process of the server.
#[derive(Debug)]
pub(crate) struct RunningProcess {
    /// Number of the process, counted from 1.
    pub(crate) number: usize,
    /// Process ID.
    pub(crate) pid: u32,
    /// Time since it was ready.
    pub(crate) age: Duration,
}

/// Shared state of one run.
#[derive(Debug)]
pub(crate) struct RunShared {
    /// Parameters of the run.
    pub(crate) plan: ChaosPlan,
    /// Address that every process of the server listens on.
    pub(crate) address: SocketAddr,
    /// API keys of the clients.
    pub(crate) keys: ClientKeys,
    /// Counts of the run.
    pub(crate) tally: Tally,
    history: Mutex<ServerHistory>,
    over: watch::Sender<bool>,
}

/// Processes of the server and disturbances so far.
#[derive(Debug)]
struct ServerHistory {
    /// ID of the running process, and the time at which it was ready. `None` between two processes.
    current: Option<(u32, Instant)>,
    /// Number of processes so far.
    count: usize,
    /// Disturbances, each with its end. The end is `None` while the disturbance lasts.
    disturbances: Vec<(Disturbance, Option<Instant>)>,
}

impl RunShared {
    /// Creates the state of a run whose server is the process `pid`.
    pub(crate) fn new(plan: ChaosPlan, address: SocketAddr, keys: ClientKeys, pid: u32) -> Arc<RunShared> {
        let history = ServerHistory { current: Some((pid, Instant::now())), count: 1, disturbances: Vec::new() };
        let tally = Tally::default();
        let over = watch::Sender::new(false);
        Arc::new(RunShared { plan, address, keys, tally, history: Mutex::new(history), over })
    }

    /// Returns the server's address with the key of the operator.
    pub(crate) fn operator(&self) -> Target {
        self.keys.operator(self.address)
    }

    fn history(&self) -> MutexGuard<'_, ServerHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a signal that ends the process is about to be sent.
    pub(crate) fn stopping(&self) {
        self.history().current = None;
        self.begin(Disturbance::Down);
    }

    /// Records that the next process is ready.
    pub(crate) fn ready(&self, pid: u32) {
        let mut history = self.history();
        history.current = Some((pid, Instant::now()));
        history.count += 1;
        drop(history);
        self.finish(Disturbance::Down);
    }

    /// Records the beginning of a disturbance.
    pub(crate) fn begin(&self, kind: Disturbance) {
        self.history().disturbances.push((kind, None));
    }

    /// Records the end of a disturbance.
    pub(crate) fn finish(&self, kind: Disturbance) {
        let mut history = self.history();
        let last = history.disturbances.iter_mut().rfind(|(other, _)| *other == kind);
        if let Some((_, end)) = last {
            *end = Some(Instant::now());
        }
    }

    /// Returns the running process. `None` between two processes.
    pub(crate) fn current_process(&self) -> Option<RunningProcess> {
        let history = self.history();
        history.current.map(|(pid, since)| RunningProcess { number: history.count, pid, age: since.elapsed() })
    }

    /// Returns `true` if the disturbance lasted at any time since `since`.
    pub(crate) fn was(&self, kind: Disturbance, since: Instant) -> bool {
        let history = self.history();
        history.disturbances.iter().any(|(other, end)| *other == kind && end.is_none_or(|end| end >= since))
    }

    /// Returns `true` if a connection made at `since` may have failed: the server was down, or other clients held all
    /// connections. Connections made shortly before a shutdown may fail as well.
    pub(crate) fn was_out_of_reach(&self, since: Instant) -> bool {
        self.was(Disturbance::Down, since) || self.was(Disturbance::Flood, since)
    }

    /// Returns `true` if the run itself explains that a request sent at `since` was refused with this status and body.
    /// The keys have no limits, so 429 is never explained.
    pub(crate) fn explains_refusal(&self, since: Instant, status: u16, body: &str) -> bool {
        if status != 503 {
            return false;
        }
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        match body["error"]["code"].as_str() {
            // The run may have more clients than the server lets wait.
            Some("queue_full") => true,
            // A server that refuses a connection may reset it before its client has read the whole body.
            Some("too_many_connections") | None => {
                self.was_out_of_reach(since.checked_sub(FLOOD_REST).unwrap_or(since))
            }
            Some(_) => self.was(Disturbance::Down, since),
        }
    }

    /// Ends the load.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
    }

    /// Returns `true` if the load is over.
    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits for `time`, at most until the end of the load. Returns `true` if the load continues.
    pub(crate) async fn pause(&self, time: Duration) -> bool {
        let mut over = self.over.subscribe();
        tokio::time::timeout(time, over.wait_for(|over| *over)).await.is_err()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;

    use super::*;

    #[test]
    fn a_refusal_needs_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let keys = ClientKeys::create(&dir.path().join("keys.toml")).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let shared = RunShared::new(ChaosPlan::parse_from(["chaos"]), address, keys, 1);
        let explained = |status: u16, code: &str| {
            let body = serde_json::json!({"error": {"code": code}}).to_string();
            shared.explains_refusal(Instant::now(), status, &body)
        };
        let codes = ["draining", "too_many_connections", "engine_unavailable"];
        assert!(codes.iter().all(|code| !explained(503, code)));
        shared.begin(Disturbance::Flood);
        assert!(explained(503, "too_many_connections") && !explained(503, "draining"));
        assert!(shared.explains_refusal(Instant::now(), 503, "{\"err"), "the connection was reset");
        shared.finish(Disturbance::Flood);
        shared.begin(Disturbance::Down);
        assert!(codes.iter().all(|code| explained(503, code)));
        assert!(!explained(429, "rate_limit_exceeded") && !explained(500, "internal_error"));
    }
}
