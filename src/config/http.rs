//! Flags for HTTP: body limit, drain, pings, traces, connections and stored responses.

use std::time::Duration;

use waymark_runtime::config::{Size, at_least_one, seconds};

use super::{
    AccessArgs, ConnectionArgs, ConnectionConfig, ResponseArgs, ResponseLimits, ResumeConfig, ServeConfigError,
    TraceArgs, TraceConfig,
};
use crate::keys::KeyLimits;

/// Flags for HTTP.
#[derive(Debug, Clone, clap::Args)]
pub struct HttpArgs {
    /// Maximum size of a request body, such as `2MiB`.
    #[arg(long, env = "WAYMARK_BODY_LIMIT", value_name = "SIZE", default_value = "2MiB")]
    pub body_limit: Size,

    /// Memory for encoding texts into tokens, such as `512MiB`: half of it for texts of up to 16 KiB, half for longer
    /// ones. Further requests wait for up to 30 seconds.
    #[arg(long, env = "WAYMARK_ENCODING_BYTES", value_name = "SIZE", default_value = "512MiB")]
    pub encoding_bytes: Size,

    /// Maximum size of one answer, such as `64MiB`. Results of searches and log-probabilities that exceed it are left
    /// out, and the answer says so (`cut`). Larger embeddings, rollouts and detokenized texts are refused.
    #[arg(long, env = "WAYMARK_ANSWER_BYTES", value_name = "SIZE", default_value = "64MiB")]
    pub answer_bytes: Size,

    /// Seconds that running requests get to finish after SIGTERM.
    #[arg(long, env = "WAYMARK_DRAIN_SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub drain_seconds: f64,

    /// Seconds of silence after which a stream sends a comment to keep its connection open. `ask` and `bench serve`
    /// give up on a server that is silent for 120.
    #[arg(long, env = "WAYMARK_PING_SECONDS", default_value_t = 15.0, value_parser = seconds)]
    pub ping_seconds: f64,

    /// Send reasoning in the field `reasoning` as well as in `reasoning_content`, for clients that know only the
    /// former.
    #[arg(long, env = "WAYMARK_MIRROR_REASONING")]
    pub mirror_reasoning: bool,

    /// Refuse hints: fields that cannot change an answer, such as `reasoning_effort` and `metadata`. By default, hints
    /// are checked and ignored.
    #[arg(long, env = "WAYMARK_STRICT")]
    pub strict: bool,

    /// Flags for traces and resumable streams.
    #[command(flatten)]
    pub traces: TraceArgs,

    /// Flags for connections.
    #[command(flatten)]
    pub connection: ConnectionArgs,

    /// Flags for `/v1/responses`.
    #[command(flatten)]
    pub responses: ResponseArgs,
}

/// Configuration of HTTP.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Maximum size of a request body, in bytes.
    pub body_limit: usize,
    /// Maximum size of the answers to searches and rollouts, of the log-probabilities in an answer, and of embeddings
    /// and decoded texts, in bytes.
    pub answer_bytes: usize,
    /// Memory for encoding texts into tokens, in bytes.
    pub encoding_bytes: usize,
    /// Silence after which a stream sends a comment.
    pub ping: Duration,
    /// Time for running requests to finish after SIGTERM.
    pub drain: Duration,
    /// If `true`, chats send reasoning under `reasoning` as well as `reasoning_content`.
    pub mirror_reasoning: bool,
    /// If `true`, hints are refused.
    pub strict: bool,
    /// Limits of traces.
    pub traces: TraceConfig,
    /// Limits of resumable streams.
    pub resume: ResumeConfig,
    /// If `true`, no two keys share cached prefixes or cached vectors of search queries.
    pub private_cache: bool,
    /// Limits of each client address.
    pub address_limits: KeyLimits,
    /// If `true`, the metrics need no key.
    pub open_metrics: bool,
    /// Host names that the server answers to; `*` for all.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may call the server from a browser; `*` for all.
    pub cors_origins: Vec<String>,
    /// Limits of connections.
    pub connection: ConnectionConfig,
    /// Limits of `/v1/responses`.
    pub responses: ResponseLimits,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            body_limit: 2 << 20,
            answer_bytes: 64 << 20,
            encoding_bytes: 512 << 20,
            ping: Duration::from_secs(15),
            drain: Duration::from_secs(30),
            mirror_reasoning: false,
            strict: false,
            traces: TraceConfig::default(),
            resume: ResumeConfig::default(),
            private_cache: false,
            address_limits: KeyLimits::default(),
            open_metrics: false,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            connection: ConnectionConfig::default(),
            responses: ResponseLimits::default(),
        }
    }
}

impl HttpArgs {
    /// Resolves the flags together with those for access.
    ///
    /// # Errors
    /// If a limit is zero or an origin is invalid.
    pub fn resolve(self, access: &AccessArgs) -> Result<HttpConfig, ServeConfigError> {
        at_least_one(&[("body-limit", self.body_limit.0)])?;
        let (traces, resume) = self.traces.resolve();
        Ok(HttpConfig {
            body_limit: self.body_limit.0,
            answer_bytes: self.answer_bytes.0,
            encoding_bytes: self.encoding_bytes.0,
            // Without any pause a stream would consist of pings.
            ping: Duration::from_secs_f64(self.ping_seconds.max(0.1)),
            drain: Duration::from_secs_f64(self.drain_seconds),
            mirror_reasoning: self.mirror_reasoning,
            strict: self.strict,
            traces,
            resume,
            private_cache: access.private_cache,
            address_limits: access.address_limits(),
            open_metrics: access.open_metrics,
            allowed_hosts: access.hosts()?,
            cors_origins: access.origins()?,
            connection: self.connection.resolve()?,
            responses: self.responses.resolve(),
        })
    }
}
