//! Flags for stored traces and resumable streams.

use std::time::Duration;

use waymark_runtime::config::Size;
use waymark_runtime::config::seconds;

/// Flags for stored traces and resumable streams.
#[derive(Debug, Clone, clap::Args)]
pub struct TraceArgs {
    /// Maximum number of traces kept in memory (`/v1/traces`); the oldest are evicted first. 0 stores none.
    #[arg(long, env = "WAYMARK_TRACE_COUNT", value_name = "NUMBER", default_value_t = 1000)]
    pub trace_count: usize,

    /// Maximum size of the traces kept in memory, such as `64MiB`; 0 stores none.
    #[arg(long, env = "WAYMARK_TRACE_BYTES", value_name = "SIZE", default_value = "64MiB")]
    pub trace_bytes: Size,

    /// Maximum size of the passages and triples in the trace of a request, such as `8MiB`. Further ones are left out of its
    /// events and of the stored trace, which say how many (`cut`). The policy reads its observations as usual.
    #[arg(long, env = "WAYMARK_EVIDENCE_BYTES", value_name = "SIZE", default_value = "8MiB")]
    pub evidence_bytes: Size,

    /// Seconds that a resumable stream waits for its client to reconnect before its episode is canceled; 0 disables
    /// resumable streams.
    #[arg(long, env = "WAYMARK_RESUME_SECONDS", value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub resume_seconds: f64,

    /// Memory for the events of one resumable stream, such as `1MiB`: half of it for events that the client may have
    /// missed, half for events not yet sent to it.
    #[arg(long, env = "WAYMARK_RESUME_BYTES", value_name = "SIZE", default_value = "1MiB")]
    pub resume_bytes: Size,

    /// Maximum number of resumable streams at a time; further ones get 503. A stream counts for `--resume-seconds`
    /// after its client has gone, even if it has ended: the last events may not have arrived.
    #[arg(long, env = "WAYMARK_RESUME_COUNT", value_name = "NUMBER", default_value_t = 256)]
    pub resume_count: usize,
}

/// Limits of traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceConfig {
    /// Maximum number of stored traces.
    pub count: usize,
    /// Maximum total size of stored traces, in bytes.
    pub bytes: usize,
    /// Maximum size of the evidence in the traces of one request, in bytes.
    pub evidence: usize,
}

/// Limits of resumable streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeConfig {
    /// Time that a stream waits for its client to reconnect.
    pub grace: Duration,
    /// Maximum size of the events that a stream holds, in bytes.
    pub bytes: usize,
    /// Maximum number of streams.
    pub count: usize,
}

impl Default for TraceConfig {
    fn default() -> Self {
        Self { count: 1000, bytes: 64 << 20, evidence: 8 << 20 }
    }
}

impl Default for ResumeConfig {
    fn default() -> Self {
        Self { grace: Duration::from_secs(30), bytes: 1 << 20, count: 256 }
    }
}

impl TraceArgs {
    /// Resolves the flags.
    pub fn resolve(self) -> (TraceConfig, ResumeConfig) {
        let evidence = self.evidence_bytes.0;
        let traces = TraceConfig { count: self.trace_count, bytes: self.trace_bytes.0, evidence };
        let grace = Duration::from_secs_f64(self.resume_seconds);
        (traces, ResumeConfig { grace, bytes: self.resume_bytes.0, count: self.resume_count })
    }
}
