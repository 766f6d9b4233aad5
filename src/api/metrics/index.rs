//! Metrics of the served index: its state is read at each scrape, its commits and searches are counted here.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Counter, Histogram};
use waymark_index::LiveIndex;

use super::recorder::MetricsRecorder;

/// Name of the histogram of commit times.
pub(super) const COMMIT_SECONDS: &str = "waymark_index_commit_seconds";

/// Name of the histogram of the times of policies' searches.
pub(super) const SEARCH_SECONDS: &str = "waymark_search_seconds";

/// Name of the histogram of the times of clients' searches.
pub(super) const CLIENT_SEARCH_SECONDS: &str = "waymark_client_search_seconds";

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
    policies: SearchMetrics,
    searches_cached: Counter,
    clients: SearchMetrics,
}

/// Metrics of searches from one side.
#[derive(Debug, Clone)]
struct SearchMetrics {
    searches: Counter,
    failures: Counter,
    seconds: Histogram,
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
            policies: SearchMetrics {
                searches: recorder.index_counter("waymark_searches_total", "Searches made by policies", name),
                failures: recorder.index_counter(
                    "waymark_search_failures_total",
                    "Searches of policies that returned an error instead of evidence",
                    name,
                ),
                seconds: recorder.index_histogram(SEARCH_SECONDS, "Seconds per search of a policy", name),
            },
            searches_cached: recorder.index_counter(
                "waymark_searches_cached_total",
                "Searches answered from the episode's own cache",
                name,
            ),
            clients: SearchMetrics {
                searches: recorder.index_counter(
                    "waymark_client_searches_total",
                    "Searches requested by clients",
                    name,
                ),
                failures: recorder.index_counter(
                    "waymark_client_search_failures_total",
                    "Searches of clients that ended with a server error",
                    name,
                ),
                seconds: recorder.index_histogram(CLIENT_SEARCH_SECONDS, "Seconds per search of a client", name),
            },
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

    /// Counts a search by a policy that took `time`.
    pub(super) fn searched(&self, time: Duration, cached: bool, failed: bool) {
        self.policies.count(failed);
        // Cached searches take no time and would distort the histogram.
        if cached {
            self.searches_cached.increment(1);
        } else {
            self.recorder.observe(&self.policies.seconds, time.as_secs_f64());
        }
    }

    /// Counts a search requested by a client that took `time`.
    pub(super) fn client_searched(&self, time: Duration, failed: bool) {
        self.clients.count(failed);
        self.recorder.observe(&self.clients.seconds, time.as_secs_f64());
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

impl SearchMetrics {
    fn count(&self, failed: bool) {
        self.searches.increment(1);
        self.failures.increment(failed.into());
    }
}
