//! Counts of request outcomes and disturbances.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestOutcome {
    /// Completed with its whole response.
    Finished,
    /// Ended with an error inside its stream.
    StreamError,
    /// Refused with an error status: full, draining, unknown policy.
    Refused,
    /// Canceled by its client.
    Cancelled,
    /// Failed because the server was down between two processes.
    ServerDown,
    /// Broke off after its response had begun. There must be none.
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
            RequestOutcome::Cancelled => "canceled by their clients",
            RequestOutcome::ServerDown => "failed while the server was down",
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
    /// Number of replaced adapters or policies.
    pub(crate) swaps: u64,
    /// Number of index changes.
    pub(crate) commits: u64,
    /// Number of poisoned passages added.
    pub(crate) poisoned: u64,
    /// Number of SIGTERM signals sent.
    pub(crate) terms: u64,
    /// Descriptions of broken guarantees.
    pub(crate) broken: Vec<String>,
}

/// Maximum number of broken guarantees described in full.
const MAX_DESCRIPTIONS: usize = 20;

impl Tally {
    /// Changes the counts.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a request.
    pub(crate) fn end(&self, outcome: RequestOutcome) {
        self.with(|counts| *counts.requests.entry(outcome).or_default() += 1);
    }

    /// Records a broken guarantee.
    pub(crate) fn broken(&self, what: String) {
        self.with(|counts| {
            if counts.broken.len() < MAX_DESCRIPTIONS {
                counts.broken.push(what);
            }
        });
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
}
