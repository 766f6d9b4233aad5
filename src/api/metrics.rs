//! What `/metrics` shows: the engine's own counters, and what is counted here about requests and episodes.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::engine::{Counters, Engine, HistogramSnapshot};

/// The media type of what [`Metrics::render`] gives.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Seconds of a whole request: from a refusal to a long episode.
const REQUEST_SECONDS: [f64; 14] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Which request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    /// The route's pattern, never the path a client made up.
    pub(crate) route: String,
    /// The status sent.
    pub(crate) status: u16,
}

/// Which route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RouteLabels {
    /// The route's pattern.
    pub(crate) route: String,
}

/// Which policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PolicyLabels {
    /// The policy's name.
    pub(crate) policy: String,
}

/// Which policy's episode, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EpisodeLabels {
    /// The policy's name.
    pub(crate) policy: String,
    /// `stop`, `length`, an error's code, or `cancelled`.
    pub(crate) outcome: &'static str,
}

/// Makes histograms with [`REQUEST_SECONDS`].
#[derive(Debug, Clone)]
pub(crate) struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(REQUEST_SECONDS)
    }
}

/// The metrics of one server; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) request_seconds: Family<RouteLabels, Histogram, Seconds>,
    pub(crate) first_text_seconds: Family<PolicyLabels, Histogram, Seconds>,
    pub(crate) episode_seconds: Family<PolicyLabels, Histogram, Seconds>,
    pub(crate) in_flight: Gauge,
    pub(crate) episodes: Family<EpisodeLabels, Counter>,
    pub(crate) searches: Counter,
    pub(crate) searches_cached: Counter,
    pub(crate) search_seconds: Histogram,
}

impl Metrics {
    /// Metrics that show the counters of `engine` beside their own.
    pub fn new(engine: &Engine) -> Self {
        let mut registry = Registry::with_prefix("waymark");
        let mut metrics = Self {
            registry: Arc::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(Seconds),
            first_text_seconds: Family::new_with_constructor(Seconds),
            episode_seconds: Family::new_with_constructor(Seconds),
            in_flight: Gauge::default(),
            episodes: Family::default(),
            searches: Counter::default(),
            searches_cached: Counter::default(),
            search_seconds: Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0]),
        };
        registry.register("http_requests", "Requests answered", metrics.requests.clone());
        registry.register(
            "http_request_seconds",
            "Seconds from a request to the end of its answer",
            metrics.request_seconds.clone(),
        );
        registry.register(
            "first_text_seconds",
            "Seconds from the beginning of an episode to its first text",
            metrics.first_text_seconds.clone(),
        );
        registry.register(
            "episode_seconds",
            "Seconds from the beginning of an episode to its end",
            metrics.episode_seconds.clone(),
        );
        registry.register("http_in_flight", "Requests that are being answered", metrics.in_flight.clone());
        registry.register("episodes", "Episodes ended", metrics.episodes.clone());
        registry.register("searches", "Searches made by policies", metrics.searches.clone());
        registry.register(
            "searches_cached",
            "Searches answered from the same episode's memory",
            metrics.searches_cached.clone(),
        );
        registry.register("search_seconds", "Seconds per search", metrics.search_seconds.clone());
        registry.register_collector(Box::new(EngineCollector(engine.clone())));
        metrics.registry = Arc::new(registry);
        metrics
    }

    /// Counts a search that took `time`.
    pub(crate) fn searched(&self, time: Duration, cached: bool) {
        self.searches.inc();
        if cached {
            self.searches_cached.inc();
        } else {
            self.search_seconds.observe(time.as_secs_f64());
        }
    }

    /// Everything, as OpenMetrics text.
    pub(crate) fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Reads the engine's counters at each scrape.
#[derive(Debug)]
struct EngineCollector(Engine);

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let counters = self.0.counters();
        for (name, help, value) in totals(counters) {
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        for (name, help, value) in levels(counters) {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&(value as i64))?;
        }
        for (name, help, snapshot) in [
            ("step_seconds", "Seconds per step of the engine", counters.step_seconds.snapshot()),
            ("queue_seconds", "Seconds a turn waits for its first step", counters.queue_seconds.snapshot()),
            ("batch_rows", "Rows per step", counters.batch_rows.snapshot()),
        ] {
            encode_histogram(&mut encoder, name, help, &snapshot)?;
        }
        Ok(())
    }
}

/// The engine's counters. The encoder adds `_total` to each name.
fn totals(counters: &Counters) -> [(&'static str, &'static str, u64); 15] {
    [
        ("prefill_tokens", "Tokens whose KV was computed in prefill", counters.prefill_tokens_total.get()),
        (
            "prefill_tokens_recomputed",
            "Tokens computed again after their blocks were given up",
            counters.prefill_tokens_recomputed_total.get(),
        ),
        (
            "prefix_cache_hit_tokens",
            "Prompt tokens found in the prefix cache",
            counters.prefix_cache_hit_tokens_total.get(),
        ),
        ("decode_tokens", "Tokens sampled", counters.decode_tokens_total.get()),
        ("steps", "Forward passes", counters.steps_total.get()),
        ("step_failures", "Forward passes that failed", counters.step_failures_total.get()),
        ("turns", "Turns begun", counters.turns_total.get()),
        ("turn_failures", "Turns that ended with an error", counters.turn_failures_total.get()),
        ("preemptions", "Running sequences whose blocks were taken", counters.preemptions_total.get()),
        ("evictions", "Idle sessions whose blocks were given up", counters.evictions_total.get()),
        ("cache_evictions", "Cached blocks overwritten", counters.cache_evictions_total.get()),
        ("cancellations", "Turns or sessions dropped before their end", counters.cancellations_total.get()),
        ("stalls", "Times a slow reader took its session out of the batch", counters.stalls_total.get()),
        ("late_masks", "Times a constrained turn sat a step out", counters.late_masks_total.get()),
        (
            "invariant_violations",
            "Times the block accounting did not add up; anything but 0 is a bug",
            counters.invariant_violations_total.get(),
        ),
    ]
}

/// The engine's gauges.
fn levels(counters: &Counters) -> [(&'static str, &'static str, u64); 7] {
    [
        ("blocks_free", "KV blocks that hold nothing", counters.blocks_free.get()),
        ("blocks_cached", "KV blocks kept for the prefix cache alone", counters.blocks_cached.get()),
        ("blocks_used", "KV blocks that sessions hold", counters.blocks_used.get()),
        ("sessions_running", "Sessions in the batch", counters.sessions_running.get()),
        ("sessions_waiting", "Sessions that wait for their next step", counters.sessions_waiting.get()),
        ("sessions_parked", "Sessions between two turns", counters.sessions_parked.get()),
        ("sessions_stalled", "Sessions whose reader has to catch up", counters.sessions_stalled.get()),
    ]
}

fn encode_histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    snapshot: &HistogramSnapshot,
) -> Result<(), std::fmt::Error> {
    let bounds = snapshot.bounds.iter().copied().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(snapshot.counts.iter().copied()).collect();
    encoder.encode_descriptor(name, help, None, MetricType::Histogram)?.encode_histogram::<NoLabelSet>(
        snapshot.sum,
        snapshot.count(),
        &buckets,
        None,
    )
}
