//! Counters of the engine. Written by the engine thread, read by `/metrics`, tests and benchmarks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::histogram::Histogram;

/// A number that only increases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Adds `count`.
    pub fn add(&self, count: usize) {
        // Most rows add nothing to most counters, and an atomic addition waits for all earlier writes of the thread.
        if count > 0 {
            // Readers compare no two counters with each other, so no ordering is needed.
            self.0.fetch_add(count as u64, Relaxed);
        }
    }
}

/// A number that increases and decreases.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Sets the value.
    pub fn set(&self, value: usize) {
        self.0.store(value as u64, Relaxed);
    }
}

/// Buckets of the step time in seconds: from microseconds of a mock to a long prefill on a CPU.
const STEP_SECONDS: &[f64] = &[0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// Buckets of the time between two passes in seconds: the part of a step that the engine thread adds to the backend's
/// time.
const GAP_SECONDS: &[f64] = &[1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.05];
/// Buckets of the time until a turn's first step, in seconds.
const QUEUE_SECONDS: &[f64] = &[0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Buckets of the number of rows in a step.
const BATCH_ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0];

/// All counters of one engine.
#[derive(Debug)]
pub struct Counters {
    /// Tokens whose KV was computed in prefill, including those computed again.
    pub prefill_tokens_total: Counter,
    /// Tokens computed again, for example because their KV was evicted or their mask came after their logits.
    pub prefill_tokens_recomputed_total: Counter,
    /// Tokens of first prompts found in the prefix cache instead of being computed.
    pub prefix_cache_hit_tokens_total: Counter,
    /// Tokens sampled.
    pub decode_tokens_total: Counter,
    /// Tokens proposed by lookup in the sequence itself, and verified.
    pub lookup_proposed_tokens_total: Counter,
    /// Tokens that needed no step of their own, because lookup had proposed the token before them.
    pub lookup_accepted_tokens_total: Counter,
    /// Forward passes, including failed ones.
    pub steps_total: Counter,
    /// Forward passes that failed or panicked.
    pub step_failures_total: Counter,
    /// Turns begun.
    pub turns_total: Counter,
    /// Turns that ended with an error.
    pub turn_failures_total: Counter,
    /// Running sessions that left the batch because blocks were short.
    pub preemptions_total: Counter,
    /// Running sessions that gave their place in a full batch to one of another tenant, or of a higher priority.
    pub rotations_total: Counter,
    /// Sessions outside the batch (parked, stalled, preempted or waiting) whose blocks were taken.
    pub evictions_total: Counter,
    /// Cached blocks that were overwritten.
    pub cache_evictions_total: Counter,
    /// Sessions that began with the tokens of another one.
    pub forks_total: Counter,
    /// Blocks that were copied because a session was about to write to a shared one.
    pub block_copies_total: Counter,
    /// Turns or sessions dropped by their owner before a turn had ended.
    pub cancellations_total: Counter,
    /// Times a session left the batch because its reader was too slow.
    pub stalls_total: Counter,
    /// Times a constrained turn missed a step because its mask was late.
    pub late_masks_total: Counter,
    /// Decode steps recorded as a GPU graph, one per batch size.
    pub graph_recordings_total: Counter,
    /// Batch sizes whose decode step could not be recorded as a GPU graph; their kernels are launched one by one.
    pub graph_refusals_total: Counter,
    /// Times an invariant was violated, such as the sums of the block accounting. Any value but 0 is a bug.
    pub invariant_violations_total: Counter,
    /// Seconds per step: plan, forward pass, sampling, delivery.
    pub step_seconds: Histogram,
    /// Seconds from the end of a pass to the beginning of the next, where the next follows immediately: the overhead of
    /// a step on the engine thread. A pass on a device has begun when all of it is in the device's queue.
    pub gap_seconds: Histogram,
    /// Seconds from the request to the first step, per turn.
    pub queue_seconds: Histogram,
    /// Rows per step.
    pub batch_rows: Histogram,
    /// KV blocks without content.
    pub blocks_free: Gauge,
    /// KV blocks held by the prefix cache alone.
    pub blocks_cached: Gauge,
    /// KV blocks held by sessions.
    pub blocks_used: Gauge,
    /// Bytes of host memory that KV blocks have taken so far.
    pub kv_bytes: Gauge,
    /// Loaded adapters, including those that are unloaded with their last session.
    pub adapters: Gauge,
    /// Bytes of host memory that loaded adapters take.
    pub adapter_bytes: Gauge,
    /// Sessions in the batch.
    pub sessions_running: Gauge,
    /// Sessions that wait for their next step.
    pub sessions_waiting: Gauge,
    /// Sessions between two turns.
    pub sessions_parked: Gauge,
    /// Sessions whose reader has to catch up.
    pub sessions_stalled: Gauge,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            prefill_tokens_total: Counter::default(),
            prefill_tokens_recomputed_total: Counter::default(),
            prefix_cache_hit_tokens_total: Counter::default(),
            decode_tokens_total: Counter::default(),
            lookup_proposed_tokens_total: Counter::default(),
            lookup_accepted_tokens_total: Counter::default(),
            steps_total: Counter::default(),
            step_failures_total: Counter::default(),
            turns_total: Counter::default(),
            turn_failures_total: Counter::default(),
            preemptions_total: Counter::default(),
            rotations_total: Counter::default(),
            evictions_total: Counter::default(),
            cache_evictions_total: Counter::default(),
            forks_total: Counter::default(),
            block_copies_total: Counter::default(),
            cancellations_total: Counter::default(),
            stalls_total: Counter::default(),
            late_masks_total: Counter::default(),
            graph_recordings_total: Counter::default(),
            graph_refusals_total: Counter::default(),
            invariant_violations_total: Counter::default(),
            step_seconds: Histogram::new(STEP_SECONDS),
            gap_seconds: Histogram::new(GAP_SECONDS),
            queue_seconds: Histogram::new(QUEUE_SECONDS),
            batch_rows: Histogram::new(BATCH_ROWS),
            blocks_free: Gauge::default(),
            blocks_cached: Gauge::default(),
            blocks_used: Gauge::default(),
            kv_bytes: Gauge::default(),
            adapters: Gauge::default(),
            adapter_bytes: Gauge::default(),
            sessions_running: Gauge::default(),
            sessions_waiting: Gauge::default(),
            sessions_parked: Gauge::default(),
            sessions_stalled: Gauge::default(),
        }
    }
}
