//! Metrics of the served index: its state is read at each scrape, its commits are counted here.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Counter, Histogram};
use waymark_index::LiveIndex;

use super::recorder::MetricsRecorder;

/// Name of the histogram of commit times.
pub(super) const COMMIT_SECONDS: &str = "waymark_index_commit_seconds";

/// Metrics of the index; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct IndexMetrics {
    recorder: MetricsRecorder,
    /// Value of the label `index`. `None` for the default index, which has no label.
    name: Option<String>,
    live: Arc<OnceLock<Arc<LiveIndex>>>,
    commits: Counter,
    commit_failures: Counter,
    commit_seconds: Histogram,
}

impl IndexMetrics {
    pub(super) fn new(recorder: &MetricsRecorder, name: Option<&str>) -> Self {
        Self {
            recorder: recorder.clone(),
            name: name.map(str::to_owned),
            live: Arc::default(),
            commits: recorder.index_counter("waymark_index_commits_total", "Snapshots published by this server", name),
            commit_failures: recorder.index_counter(
                "waymark_index_commit_failures_total",
                "Changes of documents that failed, not counting refused ones",
                name,
            ),
            commit_seconds: recorder.index_histogram(COMMIT_SECONDS, "Seconds per published snapshot", name),
        }
    }

    /// Exposes the state of `live` at each scrape. Only the first call has an effect.
    pub(crate) fn show(&self, live: &Arc<LiveIndex>) {
        let _ = self.live.set(Arc::clone(live));
    }

    /// Counts a published snapshot whose commit took `time`.
    pub(crate) fn published(&self, time: Duration) {
        self.commits.increment(1);
        self.recorder.observe(&self.commit_seconds, time.as_secs_f64());
    }

    /// Counts a failed change.
    pub(crate) fn commit_failed(&self) {
        self.commit_failures.increment(1);
    }

    /// Records the state of the index. Records nothing if there is no index.
    pub(super) fn record(&self) {
        let Some(live) = self.live.get() else { return };
        let state = live.state();
        let stale = "1 while the latest snapshot cannot be opened and an older one is searched";
        for (name, help, value) in [
            ("waymark_index_snapshot", "Number of the snapshot in use", state.snapshot),
            ("waymark_index_passages", "Passages in the snapshot in use", state.passages),
            ("waymark_index_stale", stale, u64::from(state.stale)),
        ] {
            self.recorder.index_gauge(name, help, self.name.as_deref()).set(value as f64);
        }
    }
}
