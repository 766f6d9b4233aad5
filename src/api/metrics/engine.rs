//! Metrics of the engine, read from its own counters at each scrape.

use std::fmt::Write;

use waymark_engine::{Counters, HistogramSnapshot};

use super::recorder::MetricsRecorder;

/// Records the counters and gauges of the engine.
pub(super) fn record(recorder: &MetricsRecorder, counters: &Counters) {
    for (name, help, value) in totals(counters) {
        recorder.counter(name, help).absolute(value);
    }
    for (name, help, value) in levels(counters) {
        recorder.gauge(name, help).set(value as f64);
    }
}

/// Appends the histograms of the engine in the classic text format, because a recorder takes single observations and
/// the engine has counted them already.
pub(super) fn write_histograms(text: &mut String, counters: &Counters) -> std::fmt::Result {
    let gap = "Seconds from the end of a forward pass to the start of the next, if one follows at once";
    for (name, help, histogram) in [
        ("waymark_step_seconds", "Seconds per step of the engine", &counters.step_seconds),
        ("waymark_gap_seconds", gap, &counters.gap_seconds),
        ("waymark_queue_seconds", "Seconds a turn waits for its first step", &counters.queue_seconds),
        ("waymark_batch_rows", "Rows per step", &counters.batch_rows),
    ] {
        write_histogram(text, name, help, &histogram.snapshot())?;
    }
    Ok(())
}

fn write_histogram(text: &mut String, name: &str, help: &str, snapshot: &HistogramSnapshot) -> std::fmt::Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram")?;
    // The engine counts each bucket separately, and the format wants cumulative counts.
    let mut below = 0;
    for (bound, count) in snapshot.bounds.iter().zip(&snapshot.counts) {
        below += count;
        writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {below}")?;
    }
    let count = snapshot.count();
    writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {}\n{name}_count {count}\n", snapshot.sum)
}

/// Lists the engine's counters.
fn totals(counters: &Counters) -> [(&'static str, &'static str, u64); 22] {
    [
        (
            "waymark_prefill_tokens_total",
            "Tokens whose KV was computed in prefill",
            counters.prefill_tokens_total.get(),
        ),
        (
            "waymark_prefill_tokens_recomputed_total",
            "Tokens recomputed after their blocks were evicted",
            counters.prefill_tokens_recomputed_total.get(),
        ),
        (
            "waymark_prefix_cache_hit_tokens_total",
            "Tokens of first prompts found in the prefix cache",
            counters.prefix_cache_hit_tokens_total.get(),
        ),
        ("waymark_decode_tokens_total", "Tokens sampled", counters.decode_tokens_total.get()),
        (
            "waymark_lookup_proposed_tokens_total",
            "Tokens proposed by lookup and verified",
            counters.lookup_proposed_tokens_total.get(),
        ),
        (
            "waymark_lookup_accepted_tokens_total",
            "Tokens that needed no step of their own, because lookup had proposed the token before them",
            counters.lookup_accepted_tokens_total.get(),
        ),
        ("waymark_steps_total", "Forward passes", counters.steps_total.get()),
        ("waymark_step_failures_total", "Forward passes that failed", counters.step_failures_total.get()),
        ("waymark_turns_total", "Turns begun", counters.turns_total.get()),
        ("waymark_turn_failures_total", "Turns that ended with an error", counters.turn_failures_total.get()),
        ("waymark_preemptions_total", "Running sequences whose blocks were taken", counters.preemptions_total.get()),
        (
            "waymark_rotations_total",
            "Running sequences that gave their place to another",
            counters.rotations_total.get(),
        ),
        ("waymark_evictions_total", "Idle sessions whose blocks were evicted", counters.evictions_total.get()),
        ("waymark_cache_evictions_total", "Cached blocks overwritten", counters.cache_evictions_total.get()),
        ("waymark_forks_total", "Sessions that began with the tokens of another one", counters.forks_total.get()),
        (
            "waymark_block_copies_total",
            "KV blocks copied because two sessions wrote to one",
            counters.block_copies_total.get(),
        ),
        (
            "waymark_cancellations_total",
            "Turns or sessions canceled before their end",
            counters.cancellations_total.get(),
        ),
        (
            "waymark_stalls_total",
            "Times a session left the batch because its reader was slow",
            counters.stalls_total.get(),
        ),
        (
            "waymark_late_masks_total",
            "Times a constrained turn skipped a step because its token mask was not ready",
            counters.late_masks_total.get(),
        ),
        (
            "waymark_graph_recordings_total",
            "Batch sizes for which the GPU has recorded a decode step",
            counters.graph_recordings_total.get(),
        ),
        (
            "waymark_graph_refusals_total",
            "Batch sizes for which the GPU could not record a decode step",
            counters.graph_refusals_total.get(),
        ),
        (
            "waymark_invariant_violations_total",
            "Times the block accounting did not add up; anything but 0 is a bug",
            counters.invariant_violations_total.get(),
        ),
    ]
}

/// Lists the engine's gauges.
fn levels(counters: &Counters) -> [(&'static str, &'static str, u64); 10] {
    [
        ("waymark_blocks_free", "Empty KV blocks", counters.blocks_free.get()),
        ("waymark_blocks_cached", "KV blocks held only by the prefix cache", counters.blocks_cached.get()),
        ("waymark_blocks_used", "KV blocks held by sessions", counters.blocks_used.get()),
        ("waymark_kv_bytes", "Host memory allocated for KV blocks", counters.kv_bytes.get()),
        ("waymark_adapters", "Loaded adapters", counters.adapters.get()),
        ("waymark_adapter_bytes", "Host memory used by adapters", counters.adapter_bytes.get()),
        ("waymark_sessions_running", "Sessions in the batch", counters.sessions_running.get()),
        ("waymark_sessions_waiting", "Sessions waiting for their next step", counters.sessions_waiting.get()),
        ("waymark_sessions_parked", "Sessions between two turns", counters.sessions_parked.get()),
        ("waymark_sessions_stalled", "Sessions stalled by a slow reader", counters.sessions_stalled.get()),
    ]
}
