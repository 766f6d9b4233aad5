//! Flags for stored and background responses of `/v1/responses`.

use waymark_runtime::config::Size;

/// Flags for stored and background responses.
#[derive(Debug, Clone, clap::Args)]
pub struct ResponseArgs {
    /// Maximum number of stored responses, which clients fetch and continue by ID; the oldest are evicted first. 0
    /// stores none.
    #[arg(long, env = "WAYMARK_KEPT_RESPONSES", value_name = "COUNT", default_value_t = 1000)]
    pub kept_responses: usize,

    /// Memory for stored responses, such as `64MiB`. A background response fails when its events take an eighth of it.
    #[arg(long, env = "WAYMARK_RESPONSE_BYTES", value_name = "SIZE", default_value = "64MiB")]
    pub response_bytes: Size,

    /// Maximum number of background responses at a time; further ones get 503.
    #[arg(long, env = "WAYMARK_BACKGROUND_RESPONSES", value_name = "COUNT", default_value_t = 64)]
    pub background_responses: usize,
}

/// Limits of stored and background responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseLimits {
    /// Maximum number of stored responses; the oldest are evicted first.
    pub kept: usize,
    /// Maximum total size of stored responses, in bytes.
    pub bytes: usize,
    /// Maximum number of background responses at a time; further ones get 503.
    pub background: usize,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { kept: 1000, bytes: 64 << 20, background: 64 }
    }
}

impl ResponseArgs {
    /// Resolves the flags.
    pub fn resolve(&self) -> ResponseLimits {
        ResponseLimits {
            kept: self.kept_responses,
            bytes: self.response_bytes.0,
            background: self.background_responses,
        }
    }
}
