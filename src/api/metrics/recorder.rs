//! Recorder of one server's metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusRecorder};

/// Number of observations after which samples are moved into the buckets of their histograms. The exporter keeps each
/// sample until then, and some servers are never scraped.
const UPKEEP_INTERVAL: usize = 4096;

/// Recorder of the metrics of one server; clones share it. It is not installed for the process, so several servers
/// in one process are counted separately.
#[derive(Debug, Clone)]
pub(super) struct MetricsRecorder {
    recorder: Arc<PrometheusRecorder>,
    observed: Arc<AtomicUsize>,
}

impl MetricsRecorder {
    /// Creates a recorder. Histograms get the bounds listed with their names in `bounds`.
    pub(super) fn new(bounds: &[(&str, &[f64])]) -> Self {
        // Building fails only for an empty list of bounds, and no histogram has one.
        let recorder = build(bounds).unwrap_or_else(|_| PrometheusBuilder::new().build_recorder());
        Self { recorder: Arc::new(recorder), observed: Arc::default() }
    }

    /// Runs `record` with this recorder in place of a global one.
    pub(super) fn with<T>(&self, record: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(&*self.recorder, record)
    }

    /// Returns the counter `name`, which has no labels.
    pub(super) fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.with(|| {
            describe_counter!(name, help);
            counter!(name)
        })
    }

    /// Returns the gauge `name`, which has no labels.
    pub(super) fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.with(|| {
            describe_gauge!(name, help);
            gauge!(name)
        })
    }

    /// Returns the histogram `name`, which has no labels.
    pub(super) fn histogram(&self, name: &'static str, help: &'static str) -> Histogram {
        self.with(|| {
            describe_histogram!(name, help);
            histogram!(name)
        })
    }

    /// Returns the counter `name` of the index `index`. `index` is `None` for the default index, which has no label.
    pub(super) fn index_counter(&self, name: &'static str, help: &'static str, index: Option<&str>) -> Counter {
        let Some(index) = index else { return self.counter(name, help) };
        self.with(|| {
            describe_counter!(name, help);
            counter!(name, "index" => index.to_owned())
        })
    }

    /// Returns the gauge `name` of the index `index`. `index` is `None` for the default index, which has no label.
    pub(super) fn index_gauge(&self, name: &'static str, help: &'static str, index: Option<&str>) -> Gauge {
        let Some(index) = index else { return self.gauge(name, help) };
        self.with(|| {
            describe_gauge!(name, help);
            gauge!(name, "index" => index.to_owned())
        })
    }

    /// Returns the histogram `name` of the index `index`. `index` is `None` for the default index, which has no label.
    pub(super) fn index_histogram(&self, name: &'static str, help: &'static str, index: Option<&str>) -> Histogram {
        let Some(index) = index else { return self.histogram(name, help) };
        self.with(|| {
            describe_histogram!(name, help);
            histogram!(name, "index" => index.to_owned())
        })
    }

    /// Adds an observation to a histogram of this recorder.
    pub(super) fn observe(&self, histogram: &Histogram, value: f64) {
        histogram.record(value);
        if self.observed.fetch_add(1, Relaxed) % UPKEEP_INTERVAL == UPKEEP_INTERVAL - 1 {
            self.recorder.handle().run_upkeep();
        }
    }

    /// Returns everything recorded so far in the classic text format, an empty line after each family.
    pub(super) fn render(&self) -> String {
        self.recorder.handle().render()
    }
}

fn build(bounds: &[(&str, &[f64])]) -> Result<PrometheusRecorder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for (name, bounds) in bounds {
        builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), bounds)?;
    }
    Ok(builder.build_recorder())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_observation_is_lost_between_scrapes() {
        let recorder = MetricsRecorder::new(&[("seconds", &[1.0, 2.0])]);
        let histogram = recorder.histogram("seconds", "Seconds");
        let count = 2 * UPKEEP_INTERVAL + 1;
        for _ in 0..count {
            recorder.observe(&histogram, 1.5);
        }
        let text = recorder.render();
        assert!(text.contains("seconds_bucket{le=\"1\"} 0\n"), "{text}");
        assert!(text.contains(&format!("seconds_bucket{{le=\"2\"}} {count}\n")), "{text}");
        assert!(text.contains(&format!("seconds_count {count}\n")), "{text}");
    }

    #[test]
    fn two_recorders_count_apart() {
        let recorder = MetricsRecorder::new(&[]);
        let other = MetricsRecorder::new(&[]);
        recorder.counter("requests_total", "Requests").increment(2);
        other.counter("requests_total", "Requests").increment(1);
        assert!(recorder.render().contains("requests_total 2\n"));
        assert!(other.render().contains("requests_total 1\n"));
    }
}
