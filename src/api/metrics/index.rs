//! ServerMetrics of the served index: its state is read at each scrape, its commits are counted here.

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

/// ServerMetrics of the index; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct IndexMetrics {
    shown: IndexCollector,
    commits: Counter,
    commit_failures: Counter,
    commit_seconds: Histogram,
}

impl IndexMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            shown: IndexCollector::default(),
            commits: Counter::default(),
            commit_failures: Counter::default(),
            commit_seconds: Histogram::new(REQUEST_SECONDS),
        };
        registry.register("index_commits", "Snapshots published by this server", metrics.commits.clone());
        registry.register(
            "index_commit_failures",
            "Changes of documents that failed, not counting refused ones",
            metrics.commit_failures.clone(),
        );
        registry.register("index_commit_seconds", "Seconds per published snapshot", metrics.commit_seconds.clone());
        registry.register_collector(Box::new(metrics.shown.clone()));
        metrics
    }

    /// Exposes the state of `live` at each scrape. Only the first call has an effect.
    pub(crate) fn show(&self, live: &Arc<LiveIndex>) {
        let _ = self.shown.0.set(Arc::clone(live));
    }

    /// Counts a published snapshot whose commit took `time`.
    pub(crate) fn published(&self, time: Duration) {
        self.commits.inc();
        self.commit_seconds.observe(time.as_secs_f64());
    }

    /// Counts a failed change.
    pub(crate) fn commit_failed(&self) {
        self.commit_failures.inc();
    }
}

/// Reads the state of the index at each scrape. Exposes nothing if there is no index.
#[derive(Debug, Clone, Default)]
struct IndexCollector(Arc<OnceLock<Arc<LiveIndex>>>);

impl Collector for IndexCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(live) = self.0.get() else { return Ok(()) };
        let state = live.state();
        for (name, help, value) in [
            ("index_snapshot", "Number of the snapshot in use", state.snapshot),
            ("index_passages", "Passages in the snapshot in use", state.passages),
            (
                "index_stale",
                "1 while the latest snapshot cannot be opened and an older one is searched",
                u64::from(state.stale),
            ),
        ] {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}
