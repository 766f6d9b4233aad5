//! What `/v1/responses` keeps, and what it makes without a client waiting.

use super::Size;

/// What `/v1/responses` keeps, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct ResponseArgs {
    /// Responses that are kept, to be fetched and continued by their ids; the oldest go first. 0 keeps none.
    #[arg(long, env = "WAYMARK_KEPT_RESPONSES", value_name = "COUNT", default_value_t = 1000)]
    pub kept_responses: usize,

    /// Memory for responses that are kept, such as `64MiB`. One that is made in the background fails when its events take
    /// an eighth of it.
    #[arg(long, env = "WAYMARK_RESPONSE_BYTES", value_name = "SIZE", default_value = "64MiB")]
    pub response_bytes: Size,

    /// Responses that are made in the background at a time; more are refused with 503.
    #[arg(long, env = "WAYMARK_BACKGROUND_RESPONSES", value_name = "COUNT", default_value_t = 64)]
    pub background_responses: usize,
}

/// How much `/v1/responses` keeps, and how much it makes without a client waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseLimits {
    /// Responses kept; the oldest go first.
    pub kept: usize,
    /// Bytes they take together.
    pub bytes: usize,
    /// Responses made in the background at a time; more are refused.
    pub background: usize,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { kept: 1000, bytes: 64 << 20, background: 64 }
    }
}

impl ResponseArgs {
    /// What the flags mean.
    pub fn resolve(&self) -> ResponseLimits {
        ResponseLimits {
            kept: self.kept_responses,
            bytes: self.response_bytes.0,
            background: self.background_responses,
        }
    }
}
