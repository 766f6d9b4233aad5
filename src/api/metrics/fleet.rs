//! Metrics of requests to remote engines. All are 0 on a server that samples its tokens itself.

use waymark_runtime::fleet::FleetCounters;

use super::recorder::MetricsRecorder;

/// Records the counters of the fleet.
pub(super) fn record(recorder: &MetricsRecorder, counters: Option<&FleetCounters>) {
    let none = FleetCounters::default();
    let counters = counters.unwrap_or(&none);
    for (name, help, counter) in [
        ("waymark_remote_requests_total", "Requests to remote engines", &counters.requests_total),
        ("waymark_remote_failures_total", "Requests to remote engines that failed", &counters.failures_total),
        (
            "waymark_remote_resumptions_total",
            "Generations that continued in a new request after a failure",
            &counters.resumptions_total,
        ),
        (
            "waymark_remote_recomputed_tokens_total",
            "Tokens that remote engines recomputed: prompt - cached - new",
            &counters.recomputed_tokens_total,
        ),
        (
            "waymark_remote_corrected_tokens_total",
            "Tokens sampled again because a constraint did not allow them",
            &counters.corrected_tokens_total,
        ),
        ("waymark_remote_sent_bytes_total", "Bytes of bodies sent to remote engines", &counters.sent_bytes_total),
        (
            "waymark_remote_received_bytes_total",
            "Bytes of bodies received from remote engines",
            &counters.received_bytes_total,
        ),
    ] {
        recorder.counter(name, help).absolute(counter.get());
    }
    for (name, help, gauge) in [
        ("waymark_remote_engines", "Remote engines", &counters.engines),
        ("waymark_remote_engines_usable", "Remote engines that accept requests", &counters.engines_usable),
    ] {
        recorder.gauge(name, help).set(gauge.get() as f64);
    }
}
