//! The index that is served: what is searched of it is read at each scrape, what is done to it is counted here.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use waymark_index::LiveIndex;

use super::REQUEST_SECONDS;

/// What is seen of the index; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct IndexMetrics {
    shown: Shown,
    commits: Counter,
    commit_failures: Counter,
    commit_seconds: Histogram,
}

impl IndexMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            shown: Shown::default(),
            commits: Counter::default(),
            commit_failures: Counter::default(),
            commit_seconds: Histogram::new(REQUEST_SECONDS),
        };
        registry.register("index_commits", "Snapshots that this server has published", metrics.commits.clone());
        registry.register(
            "index_commit_failures",
            "Changes of documents that failed, without those that are refused",
            metrics.commit_failures.clone(),
        );
        registry.register(
            "index_commit_seconds",
            "Seconds that publishing a snapshot took",
            metrics.commit_seconds.clone(),
        );
        registry.register_collector(Box::new(metrics.shown.clone()));
        metrics
    }

    /// Shows `live` at each scrape. Of several the first counts.
    pub(crate) fn show(&self, live: &Arc<LiveIndex>) {
        let _ = self.shown.0.set(Arc::clone(live));
    }

    /// Counts a snapshot that was published in `time`.
    pub(crate) fn published(&self, time: Duration) {
        self.commits.inc();
        self.commit_seconds.observe(time.as_secs_f64());
    }

    /// Counts a change that failed.
    pub(crate) fn commit_failed(&self) {
        self.commit_failures.inc();
    }
}

/// Looks at the index at each scrape. Nothing is shown where there is none.
#[derive(Debug, Clone, Default)]
struct Shown(Arc<OnceLock<Arc<LiveIndex>>>);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(live) = self.0.get() else { return Ok(()) };
        let state = live.state();
        for (name, help, value) in [
            ("index_snapshot", "Number of the snapshot that is searched", state.snapshot),
            ("index_passages", "Passages of the snapshot that is searched", state.passages),
            (
                "index_stale",
                "1 while what is published cannot be opened, and what was opened before is searched",
                u64::from(state.stale),
            ),
        ] {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}
