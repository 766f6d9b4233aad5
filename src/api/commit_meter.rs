//! Progress of the running commit, for status requests and for the log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use waymark_index::{BuildPhase, BuildProgress};

/// Progress of a commit within one of its phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommitStep {
    pub(crate) phase: BuildPhase,
    /// Number of units done: passages, vectors, files.
    pub(crate) done: u64,
    /// Number of all units. `None` if it is not known yet.
    pub(crate) total: Option<u64>,
}

/// Step of the running commit, or of the last one; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct CommitMeter(Arc<Mutex<Option<CommitStep>>>);

impl CommitMeter {
    /// Sets the step. `None` while no commit runs.
    pub(super) fn set(&self, step: Option<CommitStep>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = step;
    }

    /// Returns the step.
    pub(super) fn get(&self) -> Option<CommitStep> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs the beginning of each phase of a commit, and stores its step in a meter.
pub(super) struct CommitLog<'a> {
    /// Time at which the commit began.
    pub(super) started: Instant,
    /// Meter to keep the step in.
    pub(super) meter: &'a CommitMeter,
}

impl BuildProgress for CommitLog<'_> {
    fn update(&self, phase: BuildPhase, done: u64, total: Option<u64>) {
        self.meter.set(Some(CommitStep { phase, done, total }));
        if done == 0 {
            tracing::debug!(%phase, total, seconds = self.started.elapsed().as_secs_f64(), "committing");
        }
    }
}
