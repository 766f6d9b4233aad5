//! Counts of request outcomes, disturbances and checked guarantees.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::invariant::Invariant;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestOutcome {
    /// Completed with its whole response.
    Finished,
    /// Ended with an error inside its stream, because the server was draining.
    StreamError,
    /// Refused with an error status: full, draining, unknown policy, damaged index.
    Refused,
    /// Canceled by its client.
    Canceled,
    /// Failed because the server was down between two processes, was killed, or was full of connections.
    ServerDown,
    /// Got no response although the server was reachable, or broke off without SIGKILL. There must be none.
    Lost,
    /// Got an incorrect response. There must be none.
    Wrong,
}

impl RequestOutcome {
    /// Description of the outcome.
    pub(crate) fn words(self) -> &'static str {
        match self {
            RequestOutcome::Finished => "finished",
            RequestOutcome::StreamError => "ended with an error event",
            RequestOutcome::Refused => "refused with an error status",
            RequestOutcome::Canceled => "canceled by their clients",
            RequestOutcome::ServerDown => "failed by SIGKILL, or while the server was down or full of connections",
            RequestOutcome::Lost => "lost",
            RequestOutcome::Wrong => "answered incorrectly",
        }
    }
}

/// Thread-safe counts of a run.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counts>);

/// The counts.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    /// Number of requests by outcome.
    pub(crate) requests: BTreeMap<RequestOutcome, u64>,
    /// Number of requests read slowly.
    pub(crate) slow: u64,
    /// Number of refusals and errors by status and code.
    pub(crate) refusals: BTreeMap<String, u64>,
    /// Number of other operations and faults by name.
    pub(crate) operations: BTreeMap<&'static str, u64>,
    /// Number of checks and of failed ones by guarantee.
    pub(crate) checks: BTreeMap<Invariant, (u64, u64)>,
    /// Times to the first token of short requests: alone, and under load.
    pub(crate) short: (Vec<Duration>, Vec<Duration>),
    /// Descriptions of broken guarantees.
    pub(crate) broken: Vec<String>,
}

/// Maximum number of broken guarantees described in full.
const MAX_DESCRIPTIONS: usize = 20;

/// Maximum length of such a description, in characters: it may quote a response.
const MAX_CHARS: usize = 600;

impl Tally {
    /// Changes the counts.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a request.
    pub(crate) fn end(&self, outcome: RequestOutcome) {
        self.with(|counts| *counts.requests.entry(outcome).or_default() += 1);
    }

    /// Counts operations or faults.
    pub(crate) fn count(&self, name: &'static str, number: u64) {
        self.with(|counts| *counts.operations.entry(name).or_default() += number);
    }

    /// Counts a check that held.
    pub(crate) fn held(&self, invariant: Invariant) {
        self.with(|counts| counts.checks.entry(invariant).or_default().0 += 1);
    }

    /// Counts a check that failed.
    pub(crate) fn broken(&self, invariant: Invariant, what: &str) {
        self.with(|counts| {
            let checks = counts.checks.entry(invariant).or_default();
            *checks = (checks.0 + 1, checks.1 + 1);
            if counts.broken.len() < MAX_DESCRIPTIONS {
                counts.broken.push(what.chars().take(MAX_CHARS).collect());
            }
        });
    }

    /// Counts a check.
    pub(crate) fn check(&self, invariant: Invariant, result: Result<(), String>) {
        match result {
            Ok(()) => self.held(invariant),
            Err(what) => self.broken(invariant, &what),
        }
    }

    /// Copies the counts.
    pub(crate) fn counts(&self) -> Counts {
        self.with(|counts| counts.clone())
    }
}

impl Counts {
    /// Number of requests with this outcome.
    pub(crate) fn of(&self, outcome: RequestOutcome) -> u64 {
        self.requests.get(&outcome).copied().unwrap_or(0)
    }

    /// Number of all requests.
    pub(crate) fn total(&self) -> u64 {
        self.requests.values().sum()
    }

    /// Number of failed checks.
    pub(crate) fn failures(&self) -> u64 {
        self.checks.values().map(|(_, failed)| failed).sum()
    }
}
