//! How requests are taken.

use std::time::Duration;

use super::size::seconds;
use super::{
    AccessArgs, ConfigError, ConnectionArgs, ConnectionConfig, ResponseArgs, ResponseLimits, ResumeConfig, Size,
    TraceArgs, TraceConfig, at_least_one,
};

/// How requests are taken, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct HttpArgs {
    /// Largest request body, such as `2MiB`.
    #[arg(long, env = "WAYMARK_BODY_LIMIT", value_name = "SIZE", default_value = "2MiB")]
    pub body_limit: Size,

    /// Seconds that running requests get to finish after SIGTERM.
    #[arg(long, env = "WAYMARK_DRAIN_SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub drain_seconds: f64,

    /// Seconds of silence after which a stream sends a comment to keep its connection open. `ask` and `bench serve` give up
    /// on a server that is silent for 120.
    #[arg(long, env = "WAYMARK_PING_SECONDS", default_value_t = 15.0, value_parser = seconds)]
    pub ping_seconds: f64,

    /// Send reasoning under `reasoning` as well as under `reasoning_content`: some clients know only that name.
    #[arg(long, env = "WAYMARK_MIRROR_REASONING")]
    pub mirror_reasoning: bool,

    /// What is kept of episodes.
    #[command(flatten)]
    pub traces: TraceArgs,

    /// What one connection may take.
    #[command(flatten)]
    pub connection: ConnectionArgs,

    /// What `/v1/responses` keeps.
    #[command(flatten)]
    pub responses: ResponseArgs,
}

/// How requests are taken.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Largest body, in bytes.
    pub body_limit: usize,
    /// Silence after which a stream sends a comment.
    pub ping: Duration,
    /// How long running requests get after the signal to stop.
    pub drain: Duration,
    /// Whether chats tell reasoning under its second name too.
    pub mirror_reasoning: bool,
    /// Which traces are kept.
    pub traces: TraceConfig,
    /// How streams may be taken up again.
    pub resume: ResumeConfig,
    /// Whether every key's cached prefixes are its own.
    pub private_cache: bool,
    /// Whether the metrics are for everybody.
    pub open_metrics: bool,
    /// Origins whose pages may use the server from a browser; `*` for all.
    pub cors_origins: Vec<String>,
    /// What one connection may take.
    pub connection: ConnectionConfig,
    /// What `/v1/responses` keeps.
    pub responses: ResponseLimits,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            body_limit: 2 << 20,
            ping: Duration::from_secs(15),
            drain: Duration::from_secs(30),
            mirror_reasoning: false,
            traces: TraceConfig::default(),
            resume: ResumeConfig::default(),
            private_cache: false,
            open_metrics: false,
            cors_origins: Vec::new(),
            connection: ConnectionConfig::default(),
            responses: ResponseLimits::default(),
        }
    }
}

impl HttpArgs {
    /// What the flags mean together with those about who may use the server.
    ///
    /// # Errors
    /// If no body is small enough, no connection could be opened, or an origin is none.
    pub fn resolve(self, access: &AccessArgs) -> Result<HttpConfig, ConfigError> {
        at_least_one(&[("body-limit", self.body_limit.0)])?;
        let (traces, resume) = self.traces.resolve();
        Ok(HttpConfig {
            body_limit: self.body_limit.0,
            ping: Duration::from_secs_f64(self.ping_seconds.max(0.1)),
            drain: Duration::from_secs_f64(self.drain_seconds),
            mirror_reasoning: self.mirror_reasoning,
            traces,
            resume,
            private_cache: access.private_cache,
            open_metrics: access.open_metrics,
            cors_origins: access.origins()?,
            connection: self.connection.resolve()?,
            responses: self.responses.resolve(),
        })
    }
}
