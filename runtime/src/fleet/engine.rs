//! One engine elsewhere: its connection, its trust, and the circuit breaker.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;
use super::fault::FaultKind;
use super::request::Dialect;

/// Number of consecutive failures after which an engine gets no requests until it is found healthy.
const MOST_FAILURES: u32 = 3;

/// Trust in an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Its identity was checked, and nothing has failed since.
    Trusted,
    /// A request failed: it may have been restarted with another model, so its identity is checked before the next one.
    Suspect,
    /// It gets no requests; a task checks from time to time if it is healthy again.
    Down {
        /// Reason, for readiness and errors.
        reason: String,
    },
}

/// Facts found by the identity check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EngineFacts {
    pub(super) dialect: Dialect,
    /// Name of the model there.
    pub(super) model: String,
    /// Version of its weights, if the engine tells one.
    pub(super) version: Option<String>,
}

/// An engine elsewhere.
#[derive(Debug)]
pub(super) struct RemoteEngine {
    pub(super) endpoint: Endpoint,
    state: Mutex<EngineState>,
    in_flight: AtomicUsize,
    /// Names of the adapters loaded there. Locked while one is loaded, so that each is loaded once.
    pub(super) adapters: tokio::sync::Mutex<BTreeSet<String>>,
}

#[derive(Debug)]
struct EngineState {
    trust: Trust,
    failures: u32,
    /// `None` before the first successful check.
    facts: Option<EngineFacts>,
    /// Time of the last successful check.
    checked: Instant,
    /// Number of closed connections at that time.
    closed: u64,
}

/// A request in flight, counted until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight(std::sync::Arc<RemoteEngine>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

impl RemoteEngine {
    /// Creates an engine that was not checked yet.
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let state = EngineState { trust: Trust::Suspect, failures: 0, facts: None, checked: Instant::now(), closed: 0 };
        Self {
            endpoint,
            state: Mutex::new(state),
            in_flight: AtomicUsize::new(0),
            adapters: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the trust in the engine.
    pub(super) fn trust(&self) -> Trust {
        self.state().trust.clone()
    }

    /// Returns `true` if the engine may get requests.
    pub(super) fn is_usable(&self) -> bool {
        !matches!(self.state().trust, Trust::Down { .. })
    }

    /// Returns the facts of the last successful check.
    pub(super) fn facts(&self) -> Option<EngineFacts> {
        self.state().facts.clone()
    }

    /// Records that the engine was checked.
    pub(super) fn trust_again(&self, facts: EngineFacts) {
        let closed = self.endpoint.closed.count();
        let checked = Instant::now();
        *self.state() = EngineState { trust: Trust::Trusted, failures: 0, facts: Some(facts), checked, closed };
    }

    /// Returns `true` if the engine has closed a connection since its last check, which was `pause` ago or earlier: it may
    /// have been restarted while no request was in flight.
    pub(super) fn may_have_restarted(&self, pause: Duration) -> bool {
        let state = self.state();
        state.closed != self.endpoint.closed.count() && state.checked.elapsed() >= pause
    }

    /// Records a complete reply.
    pub(super) fn succeeded(&self) {
        self.state().failures = 0;
    }

    /// Records a failure. Returns `true` if the engine gets no more requests because of it.
    pub(super) fn failed(&self, kind: FaultKind, reason: &str) -> bool {
        let mut state = self.state();
        let down = match kind {
            // A full queue and a bad request say nothing about the engine's health.
            FaultKind::Busy | FaultKind::Refused | FaultKind::MissingModel => return false,
            FaultKind::Unreachable | FaultKind::Unfit => true,
            FaultKind::Broken => {
                state.failures += 1;
                state.failures >= MOST_FAILURES
            }
        };
        let was_up = !matches!(state.trust, Trust::Down { .. });
        state.trust = if down || !was_up { Trust::Down { reason: reason.to_owned() } } else { Trust::Suspect };
        down && was_up
    }

    /// Returns the number of requests in flight.
    pub(super) fn load(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Counts a request.
    pub(super) fn enter(self: &std::sync::Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Relaxed);
        InFlight(std::sync::Arc::clone(self))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::trusted_roots::TrustedRoots;

    fn engine() -> RemoteEngine {
        let address = "vllm=http://127.0.0.1:1".parse().unwrap();
        RemoteEngine::new(Endpoint::new(address, None, &TrustedRoots::default(), Duration::from_secs(1)).unwrap())
    }

    #[test]
    fn three_failures_in_a_row_take_an_engine_down_once() {
        let engine = engine();
        let facts = EngineFacts { dialect: Dialect::Generate, model: "tiny".into(), version: None };
        engine.trust_again(facts.clone());
        assert!(!engine.failed(FaultKind::Broken, "a") && engine.trust() == Trust::Suspect);
        engine.succeeded();
        assert!(!engine.failed(FaultKind::Broken, "a") && !engine.failed(FaultKind::Broken, "b"));
        assert!(!engine.failed(FaultKind::Busy, "x") && engine.is_usable());
        assert!(engine.failed(FaultKind::Broken, "c") && !engine.is_usable());
        assert!(!engine.failed(FaultKind::Broken, "d"), "told once");
        engine.trust_again(facts);
        assert!(engine.is_usable() && engine.failed(FaultKind::Unreachable, "refused"));
    }
}
