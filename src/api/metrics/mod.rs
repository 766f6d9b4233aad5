//! Metrics exposed at `/metrics`: those of the engine, the index and the process, read at each scrape, and those of
//! requests, episodes and searches, recorded here. `docs/metrics.md` lists all of them; their names and units are
//! stable.
//!
//! | file | content |
//! |---|---|
//! | `recorder` | the recorder of one server, an exporter of the crate `metrics` |
//! | `format` | text formats, and the choice between them |
//! | `engine`, `fleet`, `index`, `machine`, `process`, `queries`, `stores` | metrics by source |

mod engine;
mod fleet;
mod format;
mod index;
mod machine;
mod process;
mod queries;
mod recorder;
mod stores;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Gauge, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use waymark_index::LiveIndex;
use waymark_runtime::embedding::TextEmbedder;
use waymark_runtime::fleet::TokenSource;

pub(crate) use self::format::MetricsFormat;
pub(crate) use self::index::IndexMetrics;
use self::process::ProcessUsage;
use self::recorder::MetricsRecorder;
pub(crate) use self::stores::MeasuredStores;

/// Histogram bounds for requests in seconds: from a refusal to a long episode.
const REQUEST_BOUNDS: &[f64] = &[0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Histogram bounds for searches in seconds: from a small index to the timeout.
const SEARCH_BOUNDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

const REQUESTS: &str = "waymark_http_requests_total";
const REQUEST_SECONDS: &str = "waymark_http_request_seconds";
const EPISODES: &str = "waymark_episodes_total";
const EPISODE_SECONDS: &str = "waymark_episode_seconds";
const FIRST_TEXT_SECONDS: &str = "waymark_first_text_seconds";
const BUILD: &str = "waymark_build_info";

/// Metrics of one server; clones share them.
#[derive(Debug, Clone)]
pub struct ServerMetrics {
    recorder: MetricsRecorder,
    engine: TokenSource,
    /// Embedder whose queries are counted.
    embedder: Option<Arc<dyn TextEmbedder>>,
    stores: MeasuredStores,
    in_flight: Gauge,
    /// Number of searches by policies. The recorder's counters cannot be read back, and `/debug/load` shows this one.
    policy_searches: Arc<AtomicU64>,
    /// Number of searches by clients.
    client_searches: Arc<AtomicU64>,
    pub(crate) index: IndexMetrics,
    /// Metrics of the indexes of all vector stores together, since clients create any number of them.
    pub(crate) vector_stores: IndexMetrics,
    other_indexes: Arc<Vec<IndexMetrics>>,
}

impl ServerMetrics {
    /// Creates the metrics, including those of `engine` and the sizes of `stores`.
    pub(crate) fn new(engine: &TokenSource, stores: MeasuredStores) -> Self {
        let recorder = MetricsRecorder::new(&[
            (REQUEST_SECONDS, REQUEST_BOUNDS),
            (EPISODE_SECONDS, REQUEST_BOUNDS),
            (FIRST_TEXT_SECONDS, REQUEST_BOUNDS),
            (index::SEARCH_SECONDS, SEARCH_BOUNDS),
            (index::CLIENT_SEARCH_SECONDS, SEARCH_BOUNDS),
            (index::COMMIT_SECONDS, REQUEST_BOUNDS),
        ]);
        recorder.with(|| {
            describe_counter!(REQUESTS, "Requests completed");
            describe_histogram!(REQUEST_SECONDS, "Seconds from a request to the end of its response");
            describe_counter!(EPISODES, "Episodes ended");
            describe_histogram!(EPISODE_SECONDS, "Seconds from the beginning of an episode to its end");
            describe_histogram!(FIRST_TEXT_SECONDS, "Seconds from the beginning of an episode to its first text");
            describe_gauge!(BUILD, "Version and model; always 1");
            let model = engine.spec().name.clone();
            gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION"), "model" => model).set(1.0);
        });
        Self {
            in_flight: recorder.gauge("waymark_http_in_flight", "Requests in progress"),
            policy_searches: Arc::default(),
            client_searches: Arc::default(),
            index: IndexMetrics::new(&recorder, None),
            vector_stores: IndexMetrics::new(&recorder, Some("vector_stores")),
            other_indexes: Arc::default(),
            engine: engine.clone(),
            embedder: None,
            stores,
            recorder,
        }
    }

    /// Sets the stores whose sizes are metrics.
    pub(crate) fn with_stores(self, stores: MeasuredStores) -> Self {
        Self { stores, ..self }
    }

    /// Sets the embedder whose queries are counted.
    pub(crate) fn with_embedder(self, embedder: Arc<dyn TextEmbedder>) -> Self {
        Self { embedder: Some(embedder), ..self }
    }

    /// Creates the metrics of another index, which have the label `index`.
    pub(crate) fn other_index(&mut self, name: &str, live: &Arc<LiveIndex>) -> IndexMetrics {
        let metrics = IndexMetrics::new(&self.recorder, Some(name));
        metrics.show(live);
        Arc::make_mut(&mut self.other_indexes).push(metrics.clone());
        metrics
    }

    /// Counts a request that has arrived.
    pub(crate) fn request_begun(&self) {
        self.in_flight.increment(1.0);
    }

    /// Counts a request that ended with `status` after `time`. `route` is the pattern of the route, never the path that
    /// a client sent, so the number of label values stays bounded.
    pub(crate) fn request_ended(&self, route: String, status: u16, time: Duration) {
        self.in_flight.decrement(1.0);
        let seconds = self.recorder.with(|| {
            counter!(REQUESTS, "route" => route.clone(), "status" => status.to_string()).increment(1);
            histogram!(REQUEST_SECONDS, "route" => route)
        });
        self.recorder.observe(&seconds, time.as_secs_f64());
    }

    /// Records that an episode of `policy` sent its first text after `time`.
    pub(crate) fn first_text(&self, policy: &str, time: Duration) {
        let seconds = self.recorder.with(|| histogram!(FIRST_TEXT_SECONDS, "policy" => policy.to_owned()));
        self.recorder.observe(&seconds, time.as_secs_f64());
    }

    /// Counts an episode of `policy` that ended after `time`. `outcome` is `stop`, `length` and so on, an error code,
    /// or `cancelled`.
    pub(crate) fn episode_ended(&self, policy: &str, outcome: &'static str, time: Duration) {
        let seconds = self.recorder.with(|| {
            counter!(EPISODES, "policy" => policy.to_owned(), "outcome" => outcome).increment(1);
            histogram!(EPISODE_SECONDS, "policy" => policy.to_owned())
        });
        self.recorder.observe(&seconds, time.as_secs_f64());
    }

    /// Counts a search of the index by a policy that took `time`.
    pub(crate) fn searched(&self, time: Duration, cached: bool, failed: bool) {
        self.policy_searches.fetch_add(1, Ordering::Relaxed);
        self.index.searched(time, cached, failed);
    }

    /// Counts a search of the index requested by a client that took `time`.
    pub(crate) fn client_searched(&self, time: Duration, failed: bool) {
        self.client_searches.fetch_add(1, Ordering::Relaxed);
        self.index.client_searched(time, failed);
    }

    /// Returns the number of searches made by policies.
    pub(crate) fn policy_searches(&self) -> u64 {
        self.policy_searches.load(Ordering::Relaxed)
    }

    /// Returns the number of searches requested by clients.
    pub(crate) fn client_searches(&self) -> u64 {
        self.client_searches.load(Ordering::Relaxed)
    }

    /// Renders all metrics.
    pub(crate) fn render(&self, format: MetricsFormat) -> Result<String, std::fmt::Error> {
        let counters = self.engine.counters();
        let process = ProcessUsage::read();
        engine::record(&self.recorder, counters);
        fleet::record(&self.recorder, self.engine.remote_counters());
        queries::record(&self.recorder, self.embedder.as_deref());
        self.index.record();
        self.other_indexes.iter().for_each(IndexMetrics::record);
        self.stores.record(&self.recorder);
        machine::record(&self.recorder);
        if let Some(process) = &process {
            process.record(&self.recorder);
        }
        let mut text = self.recorder.render();
        engine::write_histograms(&mut text, counters)?;
        if let Some(process) = &process {
            process.write_cpu_seconds(&mut text)?;
        }
        Ok(format.encode(&text))
    }
}
