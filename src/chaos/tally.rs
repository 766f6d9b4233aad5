//! What became of the requests.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// With its whole answer.
    Finished,
    /// With an error inside its stream.
    Told,
    /// With a status that says no: full, draining, unknown policy.
    Refused,
    /// Its client left.
    Cancelled,
    /// Nobody was there: the server was between two lives.
    Away,
    /// It had begun and just broke off. There must be none.
    Lost,
    /// An answer that no server in order gives. There must be none.
    Wrong,
}

impl Outcome {
    /// In words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Outcome::Finished => "finished",
            Outcome::Told => "ended by an error they were told",
            Outcome::Refused => "refused with a status",
            Outcome::Cancelled => "cancelled by their clients",
            Outcome::Away => "found nobody: between two lives of the server",
            Outcome::Lost => "lost",
            Outcome::Wrong => "answered wrongly",
        }
    }
}

/// Counts of everything that happened, by many at once.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counts>);

/// The counts.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    /// Requests of clients.
    pub(crate) requests: BTreeMap<Outcome, u64>,
    /// Requests that were read slowly.
    pub(crate) slow: u64,
    /// Statuses and codes of what was refused or told.
    pub(crate) refusals: BTreeMap<String, u64>,
    /// Adapters or policies that were replaced.
    pub(crate) swaps: u64,
    /// Changes of the index.
    pub(crate) commits: u64,
    /// Poisoned passages that went into it.
    pub(crate) poisoned: u64,
    /// Times SIGTERM was sent.
    pub(crate) terms: u64,
    /// What must never be, in words.
    pub(crate) broken: Vec<String>,
}

/// Broken promises that are told in full.
const TOLD: usize = 20;

impl Tally {
    /// Changes the counts.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a request.
    pub(crate) fn end(&self, outcome: Outcome) {
        self.with(|counts| *counts.requests.entry(outcome).or_default() += 1);
    }

    /// Notes a promise that was broken.
    pub(crate) fn broken(&self, what: String) {
        self.with(|counts| {
            if counts.broken.len() < TOLD {
                counts.broken.push(what);
            }
        });
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> Counts {
        self.with(|counts| counts.clone())
    }
}

impl Counts {
    /// Requests that ended so.
    pub(crate) fn of(&self, outcome: Outcome) -> u64 {
        self.requests.get(&outcome).copied().unwrap_or(0)
    }

    /// All requests.
    pub(crate) fn total(&self) -> u64 {
        self.requests.values().sum()
    }
}
