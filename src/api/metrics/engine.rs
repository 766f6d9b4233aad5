//! The engine's own counters, read at each scrape.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use waymark_engine::{Counters, Engine, HistogramSnapshot};

/// Reads the engine's counters at each scrape.
#[derive(Debug)]
pub(super) struct EngineCollector(pub(super) Engine);

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
            (
                "gap_seconds",
                "Seconds from the end of a forward pass to the start of the next, if one follows at once",
                counters.gap_seconds.snapshot(),
            ),
            ("queue_seconds", "Seconds a turn waits for its first step", counters.queue_seconds.snapshot()),
            ("batch_rows", "Rows per step", counters.batch_rows.snapshot()),
        ] {
            encode_histogram(&mut encoder, name, help, &snapshot)?;
        }
        Ok(())
    }
}

/// Lists the engine's counters. The encoder adds `_total` to each name.
fn totals(counters: &Counters) -> [(&'static str, &'static str, u64); 17] {
    [
        ("prefill_tokens", "Tokens whose KV was computed in prefill", counters.prefill_tokens_total.get()),
        (
            "prefill_tokens_recomputed",
            "Tokens recomputed after their blocks were evicted",
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
        ("evictions", "Idle sessions whose blocks were evicted", counters.evictions_total.get()),
        ("cache_evictions", "Cached blocks overwritten", counters.cache_evictions_total.get()),
        ("cancellations", "Turns or sessions canceled before their end", counters.cancellations_total.get()),
        ("stalls", "Times a session left the batch because its reader was slow", counters.stalls_total.get()),
        (
            "late_masks",
            "Times a constrained turn skipped a step because its token mask was not ready",
            counters.late_masks_total.get(),
        ),
        (
            "graph_recordings",
            "Batch sizes for which the GPU has recorded a decode step",
            counters.graph_recordings_total.get(),
        ),
        (
            "graph_refusals",
            "Batch sizes for which the GPU could not record a decode step",
            counters.graph_refusals_total.get(),
        ),
        (
            "invariant_violations",
            "Times the block accounting did not add up; anything but 0 is a bug",
            counters.invariant_violations_total.get(),
        ),
    ]
}

/// Lists the engine's gauges.
fn levels(counters: &Counters) -> [(&'static str, &'static str, u64); 10] {
    [
        ("blocks_free", "Empty KV blocks", counters.blocks_free.get()),
        ("blocks_cached", "KV blocks held only by the prefix cache", counters.blocks_cached.get()),
        ("blocks_used", "KV blocks held by sessions", counters.blocks_used.get()),
        ("kv_bytes", "Host memory allocated for KV blocks", counters.kv_bytes.get()),
        ("adapters", "Loaded adapters", counters.adapters.get()),
        ("adapter_bytes", "Host memory used by adapters", counters.adapter_bytes.get()),
        ("sessions_running", "Sessions in the batch", counters.sessions_running.get()),
        ("sessions_waiting", "Sessions waiting for their next step", counters.sessions_waiting.get()),
        ("sessions_parked", "Sessions between two turns", counters.sessions_parked.get()),
        ("sessions_stalled", "Sessions stalled by a slow reader", counters.sessions_stalled.get()),
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
