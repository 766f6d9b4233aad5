//! What is kept of episodes, and of streams that may be taken up again.

use std::time::Duration;

use super::Size;
use super::size::seconds;

/// What is kept of episodes, and of streams that may be taken up again, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct TraceArgs {
    /// Traces of episodes that are kept (`/v1/traces`), the youngest ones; 0 keeps none.
    #[arg(long, env = "WAYMARK_TRACE_COUNT", value_name = "NUMBER", default_value_t = 1000)]
    pub trace_count: usize,

    /// Memory for the traces that are kept, such as `64MiB`; 0 keeps none.
    #[arg(long, env = "WAYMARK_TRACE_BYTES", value_name = "SIZE", default_value = "64MiB")]
    pub trace_bytes: Size,

    /// Seconds that a resumable stream waits for its client to come back before its episode is cancelled; 0 has no
    /// resumable streams.
    #[arg(long, env = "WAYMARK_RESUME_SECONDS", value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub resume_seconds: f64,

    /// Memory for the events of one resumable stream, such as `1MiB`: half of it for those a client may have missed, half
    /// for those it has not been sent.
    #[arg(long, env = "WAYMARK_RESUME_BYTES", value_name = "SIZE", default_value = "1MiB")]
    pub resume_bytes: Size,

    /// Resumable streams at a time; more are refused with 503. One keeps its place for `--resume-seconds` after its reader
    /// has gone, also when it is over: what was sent last may not have arrived.
    #[arg(long, env = "WAYMARK_RESUME_COUNT", value_name = "NUMBER", default_value_t = 256)]
    pub resume_count: usize,
}

/// Which traces are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceConfig {
    /// How many.
    pub count: usize,
    /// How many bytes they may take together.
    pub bytes: usize,
}

/// How streams may be taken up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeConfig {
    /// How long one waits for its client.
    pub grace: Duration,
    /// How many bytes of events one holds.
    pub bytes: usize,
    /// How many there may be.
    pub count: usize,
}

impl Default for TraceConfig {
    fn default() -> Self {
        Self { count: 1000, bytes: 64 << 20 }
    }
}

impl Default for ResumeConfig {
    fn default() -> Self {
        Self { grace: Duration::from_secs(30), bytes: 1 << 20, count: 256 }
    }
}

impl TraceArgs {
    /// What the flags mean together.
    pub fn resolve(self) -> (TraceConfig, ResumeConfig) {
        let traces = TraceConfig { count: self.trace_count, bytes: self.trace_bytes.0 };
        let grace = Duration::from_secs_f64(self.resume_seconds);
        (traces, ResumeConfig { grace, bytes: self.resume_bytes.0, count: self.resume_count })
    }
}
