//! Counters of requests to engines elsewhere.

use waymark_engine::{Counter, Gauge};

/// Counters of a fleet, beside those of an engine.
#[derive(Debug, Default)]
pub struct FleetCounters {
    /// Requests that generate or score tokens.
    pub requests_total: Counter,
    /// Requests that failed.
    pub failures_total: Counter,
    /// Generations that went on in a new request after a failure.
    pub resumptions_total: Counter,
    /// Tokens that were computed again although an engine had computed them in an earlier turn of the session: prompt −
    /// cached − new.
    pub recomputed_tokens_total: Counter,
    /// Tokens of constrained turns that were sampled again because the constraint did not allow them.
    pub corrected_tokens_total: Counter,
    /// Bytes of request bodies.
    pub sent_bytes_total: Counter,
    /// Bytes of response bodies.
    pub received_bytes_total: Counter,
    /// Engines that take requests.
    pub engines_usable: Gauge,
    /// All engines.
    pub engines: Gauge,
}
