//! Flags for the fact filter of graph search.

use std::path::PathBuf;
use std::time::Duration;

use super::ConfigError;

/// Flags for the fact filter of graph search.
#[derive(Debug, Clone, clap::Args)]
pub struct FactFilterArgs {
    /// Base URL of an OpenAI-compatible endpoint, without `/chat/completions`, whose language model filters the facts
    /// that graph search starts from (HippoRAG 2's recognition memory).
    #[arg(long, env = "WAYMARK_FACT_FILTER_URL", value_name = "URL", requires = "fact_filter_model")]
    pub fact_filter_url: Option<String>,

    /// Model to ask for at that endpoint.
    #[arg(long, env = "WAYMARK_FACT_FILTER_MODEL", value_name = "NAME", requires = "fact_filter_url")]
    pub fact_filter_model: Option<String>,

    /// Environment variable that holds the API key of that endpoint. If it is unset, no key is sent.
    #[arg(long, env = "WAYMARK_FACT_FILTER_KEY_ENV", value_name = "VARIABLE", default_value = "OPENAI_API_KEY")]
    pub fact_filter_key_env: String,

    /// File of CA certificates (PEM) to trust instead of the public ones when that endpoint uses HTTPS.
    #[arg(long, env = "WAYMARK_FACT_FILTER_CA", value_name = "FILE")]
    pub fact_filter_ca: Option<PathBuf>,

    /// Timeout of the filter within a search, in milliseconds.
    #[arg(long, env = "WAYMARK_FACT_FILTER_TIMEOUT_MS", value_name = "MS", default_value_t = 2000)]
    pub fact_filter_timeout_ms: u64,

    /// Fall back to dense ranking when the filter fails, as HippoRAG does. By default the search fails.
    #[arg(long, env = "WAYMARK_FACT_FILTER_FALLBACK")]
    pub fact_filter_fallback: bool,
}

/// Configuration of the fact filter.
#[derive(Debug, Clone)]
pub struct FactFilterConfig {
    /// Base URL of the endpoint.
    pub url: String,
    /// Name of the model at the endpoint.
    pub model: String,
    /// Environment variable that holds the API key.
    pub key_env: String,
    /// File of CA certificates to trust. `None` trusts the public ones.
    pub ca: Option<PathBuf>,
    /// Timeout of one call.
    pub timeout: Duration,
    /// Falls back to dense ranking when the filter fails.
    pub fallback: bool,
}

impl FactFilterArgs {
    /// Resolves the flags. `None` if no model is named.
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn resolve(self) -> Result<Option<FactFilterConfig>, ConfigError> {
        let (Some(url), Some(model)) = (self.fact_filter_url, self.fact_filter_model) else { return Ok(None) };
        if self.fact_filter_timeout_ms == 0 {
            return Err(ConfigError::Zero("fact-filter-timeout-ms"));
        }
        let timeout = Duration::from_millis(self.fact_filter_timeout_ms);
        Ok(Some(FactFilterConfig {
            url,
            model,
            key_env: self.fact_filter_key_env,
            ca: self.fact_filter_ca,
            timeout,
            fallback: self.fact_filter_fallback,
        }))
    }
}
