//! The engine's own counters, read at each scrape.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::engine::{Counters, Engine, HistogramSnapshot};

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
                "Seconds from the end of a pass to the beginning of the next, where one follows at once",
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

/// The engine's counters. The encoder adds `_total` to each name.
fn totals(counters: &Counters) -> [(&'static str, &'static str, u64); 17] {
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
        ("graph_recordings", "Decode steps a card has recorded, by size", counters.graph_recordings_total.get()),
        ("graph_refusals", "Decode steps a card could not record", counters.graph_refusals_total.get()),
        (
            "invariant_violations",
            "Times the block accounting did not add up; anything but 0 is a bug",
            counters.invariant_violations_total.get(),
        ),
    ]
}

/// The engine's gauges.
fn levels(counters: &Counters) -> [(&'static str, &'static str, u64); 10] {
    [
        ("blocks_free", "KV blocks that hold nothing", counters.blocks_free.get()),
        ("blocks_cached", "KV blocks kept for the prefix cache alone", counters.blocks_cached.get()),
        ("blocks_used", "KV blocks that sessions hold", counters.blocks_used.get()),
        ("kv_bytes", "Memory of this machine that KV blocks have taken so far", counters.kv_bytes.get()),
        ("adapters", "Adapters that are loaded", counters.adapters.get()),
        ("adapter_bytes", "Memory of this machine that adapters take", counters.adapter_bytes.get()),
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
