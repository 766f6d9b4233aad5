//! One engine elsewhere: its connection, the trust in it, and the circuit breaker.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::adapters::RemoteAdapter;
use super::endpoint::Endpoint;
use super::engine_adapters::EngineAdapters;
use super::fault::FaultKind;
use super::request::Dialect;

/// Number of consecutive failures after which an engine gets no requests until it is found healthy.
const MOST_FAILURES: u32 = 3;

/// Trust in an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Its identity was checked, and nothing has failed since.
    Trusted,
    /// Its identity is checked before the next request: it is new, or something failed and it may have been restarted
    /// with another model.
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
    /// Version of its weights, if the engine reports one.
    pub(super) version: Option<String>,
}

/// An engine elsewhere.
#[derive(Debug)]
pub(super) struct RemoteEngine {
    pub(super) endpoint: Endpoint,
    state: Mutex<EngineState>,
    in_flight: AtomicUsize,
    /// Adapters loaded there.
    pub(super) adapters: EngineAdapters,
    /// Locked while the identity is checked, so that requests that arrive together share one check.
    pub(super) checking: tokio::sync::Mutex<()>,
}

/// State of an engine before a check of its identity.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckStart {
    /// Number of closed connections.
    closed: u64,
    /// Number of times that trust was withdrawn.
    distrusts: u64,
}

#[derive(Debug)]
struct EngineState {
    trust: Trust,
    /// Number of failures since the last complete turn or reply. A check of the identity does not end the row.
    failures: u32,
    /// `None` before the first successful check.
    facts: Option<EngineFacts>,
    /// Time of the last successful check.
    checked: Instant,
    /// Number of closed connections before the last successful check.
    closed: u64,
    /// Number of times that trust was withdrawn.
    distrusts: u64,
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
        let state = EngineState {
            trust: Trust::Suspect,
            failures: 0,
            facts: None,
            checked: Instant::now(),
            closed: 0,
            distrusts: 0,
        };
        Self {
            endpoint,
            state: Mutex::new(state),
            in_flight: AtomicUsize::new(0),
            adapters: EngineAdapters::default(),
            checking: tokio::sync::Mutex::default(),
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

    /// Returns the state before a check that begins now.
    pub(super) fn begin_check(&self) -> CheckStart {
        CheckStart { closed: self.endpoint.closed.count(), distrusts: self.state().distrusts }
    }

    /// Records that the engine passed a check that began at `start`. Connections that ended meanwhile count as ended
    /// after the check: the engine may have been restarted in the middle of it. Only an engine that was down has its
    /// failures forgiven, because an engine that passes every check may still break every stream.
    pub(super) fn trust_again(&self, facts: EngineFacts, start: CheckStart) {
        let mut state = self.state();
        // A check that began before trust was withdrawn may not have covered the reason for withdrawing it.
        let trust = if state.distrusts == start.distrusts { Trust::Trusted } else { Trust::Suspect };
        let failures = if matches!(state.trust, Trust::Down { .. }) { 0 } else { state.failures };
        let distrusts = state.distrusts;
        let checked = Instant::now();
        *state = EngineState { trust, failures, facts: Some(facts), checked, closed: start.closed, distrusts };
    }

    /// Withdraws trust, so that the engine is checked before its next request.
    pub(super) fn distrust(&self) {
        let mut state = self.state();
        state.distrusts += 1;
        if state.trust == Trust::Trusted {
            state.trust = Trust::Suspect;
        }
    }

    /// Returns `true` if a connection has ended since the last check, which was at least `pause` ago: the engine may
    /// have been restarted while no request was in flight.
    pub(super) fn may_have_restarted(&self, pause: Duration) -> bool {
        let state = self.state();
        state.closed != self.endpoint.closed.count() && state.checked.elapsed() >= pause
    }

    /// Records a complete turn or reply, which ends a row of failures.
    pub(super) fn succeeded(&self) {
        self.state().failures = 0;
    }

    /// Records a failure. Returns `true` if the engine gets no more requests because of it.
    pub(super) fn failed(&self, kind: FaultKind, reason: &str) -> bool {
        let mut state = self.state();
        let down = match kind {
            // A full queue, a bad request and an adapter say nothing about the engine's health.
            FaultKind::Busy | FaultKind::Refused | FaultKind::MissingModel | FaultKind::OtherAdapter => return false,
            FaultKind::Unreachable | FaultKind::Unfit | FaultKind::Forbidden => true,
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

    /// Returns the key by which an engine is chosen for a session with `adapter`, the smallest one first. An engine whose
    /// identity is being checked, or that is loading the adapter, comes last, because its requests wait for that.
    pub(super) fn rank(&self, adapter: Option<&RemoteAdapter>) -> (bool, usize) {
        let is_checked = self.checking.try_lock().is_err();
        let loads_adapter = adapter.is_some_and(|adapter| self.adapters.is_busy(&adapter.name));
        (is_checked || loads_adapter, self.load())
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
        engine.trust_again(facts.clone(), engine.begin_check());
        assert!(!engine.failed(FaultKind::Broken, "a") && engine.trust() == Trust::Suspect);
        engine.succeeded();
        // The identity is checked before each request that follows a failure.
        let pass_check = || engine.trust_again(facts.clone(), engine.begin_check());
        for reason in ["a", "b"] {
            pass_check();
            assert!(!engine.failed(FaultKind::Broken, reason) && engine.trust() == Trust::Suspect);
        }
        pass_check();
        assert!(!engine.failed(FaultKind::Busy, "x") && engine.is_usable());
        assert!(engine.failed(FaultKind::Broken, "c") && !engine.is_usable());
        assert!(!engine.failed(FaultKind::Broken, "d"), "told once");
        pass_check();
        assert!(!engine.failed(FaultKind::Broken, "e") && engine.is_usable(), "a new row begins");
        pass_check();
        assert!(!engine.failed(FaultKind::OtherAdapter, "x") && engine.trust() == Trust::Trusted);
        assert!(engine.is_usable() && engine.failed(FaultKind::Unreachable, "refused"));
    }

    #[test]
    fn what_happens_during_a_check_is_not_covered_by_it() {
        let engine = engine();
        let facts = EngineFacts { dialect: Dialect::Generate, model: "tiny".into(), version: None };
        let start = engine.begin_check();
        engine.endpoint.closed.add();
        engine.trust_again(facts.clone(), start);
        assert!(engine.trust() == Trust::Trusted && engine.may_have_restarted(Duration::ZERO));
        let start = engine.begin_check();
        engine.distrust();
        assert_eq!(engine.trust(), Trust::Suspect);
        engine.trust_again(facts.clone(), start);
        assert!(engine.trust() == Trust::Suspect && !engine.may_have_restarted(Duration::ZERO));
        engine.trust_again(facts, engine.begin_check());
        assert_eq!(engine.trust(), Trust::Trusted);
    }
}
