//! ServerMetrics exposed at `/metrics`: counters of the engine and the process, and those of requests, episodes and searches
//! kept here. `docs/metrics.md` lists all of them; their names and units are stable.

mod engine;
mod index;
mod process;
mod stores;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use self::engine::EngineCollector;
pub(crate) use self::index::IndexMetrics;
use self::process::ProcessCollector;
pub(crate) use self::stores::{StoreCollector, StoreSize};
use waymark_engine::Engine;

/// Media type of the output of [`ServerMetrics::render`].
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Histogram bounds for requests in seconds: from a refusal to a long episode.
const REQUEST_SECONDS: [f64; 14] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Histogram bounds for searches in seconds: from a small index to the timeout.
const SEARCH_SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Labels of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    /// Pattern of the route, never the path a client sent, so that the number of label values stays bounded.
    pub(crate) route: String,
    /// Status of the response.
    pub(crate) status: u16,
}

/// Label of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RouteLabels {
    /// Pattern of the route.
    pub(crate) route: String,
}

/// Label of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PolicyLabels {
    /// Name of the policy.
    pub(crate) policy: String,
}

/// Labels of an episode: its policy and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EpisodeLabels {
    /// Name of the policy.
    pub(crate) policy: String,
    /// `stop`, `length` and so on, an error code, or `cancelled`.
    pub(crate) outcome: &'static str,
}

/// Constructor of histograms with the bounds [`REQUEST_SECONDS`].
#[derive(Debug, Clone)]
pub(crate) struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(REQUEST_SECONDS)
    }
}

/// ServerMetrics of one server; clones share them.
#[derive(Debug, Clone)]
pub struct ServerMetrics {
    registry: Arc<Registry>,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) request_seconds: Family<RouteLabels, Histogram, Seconds>,
    pub(crate) first_text_seconds: Family<PolicyLabels, Histogram, Seconds>,
    pub(crate) episode_seconds: Family<PolicyLabels, Histogram, Seconds>,
    pub(crate) in_flight: Gauge,
    pub(crate) episodes: Family<EpisodeLabels, Counter>,
    pub(crate) searches: Counter,
    pub(crate) searches_cached: Counter,
    pub(crate) search_failures: Counter,
    pub(crate) search_seconds: Histogram,
    pub(crate) client_searches: Counter,
    client_search_failures: Counter,
    client_search_seconds: Histogram,
    pub(crate) index: IndexMetrics,
}

impl ServerMetrics {
    /// Creates the metrics, including those of `engine` and the sizes of the stores in `held`.
    pub(crate) fn new(engine: &Engine, held: StoreCollector) -> Self {
        let mut whole = Registry::default();
        whole.register_collector(Box::new(ProcessCollector));
        let registry = whole.sub_registry_with_prefix("waymark");
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
            search_failures: Counter::default(),
            search_seconds: Histogram::new(SEARCH_SECONDS),
            client_searches: Counter::default(),
            client_search_failures: Counter::default(),
            client_search_seconds: Histogram::new(SEARCH_SECONDS),
            index: IndexMetrics::new(registry),
        };
        registry.register("http_requests", "Requests completed", metrics.requests.clone());
        registry.register(
            "http_request_seconds",
            "Seconds from a request to the end of its response",
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
        registry.register("http_in_flight", "Requests in progress", metrics.in_flight.clone());
        registry.register("episodes", "Episodes ended", metrics.episodes.clone());
        registry.register("searches", "Searches made by policies", metrics.searches.clone());
        registry.register(
            "searches_cached",
            "Searches answered from the episode's own cache",
            metrics.searches_cached.clone(),
        );
        registry.register(
            "search_failures",
            "Searches of policies that returned an error instead of evidence",
            metrics.search_failures.clone(),
        );
        registry.register("search_seconds", "Seconds per search of a policy", metrics.search_seconds.clone());
        registry.register("client_searches", "Searches requested by clients", metrics.client_searches.clone());
        registry.register(
            "client_search_failures",
            "Searches of clients that ended with a server error",
            metrics.client_search_failures.clone(),
        );
        registry.register(
            "client_search_seconds",
            "Seconds per search of a client",
            metrics.client_search_seconds.clone(),
        );
        let labels = [("version", env!("CARGO_PKG_VERSION").to_owned()), ("model", engine.spec().name.clone())];
        registry.register("build", "Version and model; always 1", Info::new(labels.to_vec()));
        registry.register_collector(Box::new(EngineCollector(engine.clone())));
        registry.register_collector(Box::new(held));
        metrics.registry = Arc::new(whole);
        metrics
    }

    /// Counts a search by a policy that took `time`.
    pub(crate) fn searched(&self, time: Duration, cached: bool, failed: bool) {
        self.searches.inc();
        self.search_failures.inc_by(failed.into());
        // Cached searches take no time and would distort the histogram.
        if cached {
            self.searches_cached.inc();
        } else {
            self.search_seconds.observe(time.as_secs_f64());
        }
    }

    /// Counts a search requested by a client that took `time`.
    pub(crate) fn client_searched(&self, time: Duration, failed: bool) {
        self.client_searches.inc();
        self.client_search_failures.inc_by(failed.into());
        self.client_search_seconds.observe(time.as_secs_f64());
    }

    /// Renders all metrics as OpenMetrics text.
    pub(crate) fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
