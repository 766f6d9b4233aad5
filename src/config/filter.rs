//! A language model that says which facts graph search follows.

use std::time::Duration;

use super::ConfigError;

/// Which language model, if any, says which facts graph search follows.
#[derive(Debug, Clone, clap::Args)]
pub struct FactFilterArgs {
    /// Have a language model choose among the facts that graph search starts from (HippoRAG 2's recognition memory):
    /// address of an OpenAI-compatible endpoint, the part before `/chat/completions`.
    #[arg(long, env = "WAYMARK_FACT_FILTER_URL", value_name = "URL", requires = "fact_filter_model")]
    pub fact_filter_url: Option<String>,

    /// Model to ask for at that endpoint.
    #[arg(long, env = "WAYMARK_FACT_FILTER_MODEL", value_name = "NAME", requires = "fact_filter_url")]
    pub fact_filter_model: Option<String>,

    /// Environment variable that holds the key of that endpoint; where it is not set, no key is sent.
    #[arg(long, env = "WAYMARK_FACT_FILTER_KEY_ENV", value_name = "VARIABLE", default_value = "OPENAI_API_KEY")]
    pub fact_filter_key_env: String,

    /// Milliseconds that the filter may take of a search.
    #[arg(long, env = "WAYMARK_FACT_FILTER_TIMEOUT_MS", value_name = "MS", default_value_t = 2000)]
    pub fact_filter_timeout_ms: u64,

    /// Where the filter does not answer, rank passages by their own similarity, as HippoRAG does; otherwise the search
    /// fails.
    #[arg(long, env = "WAYMARK_FACT_FILTER_FALLBACK")]
    pub fact_filter_fallback: bool,
}

/// A language model that says which facts graph search follows.
#[derive(Debug, Clone)]
pub struct FactFilterConfig {
    /// Where it is.
    pub url: String,
    /// Its name there.
    pub model: String,
    /// The environment variable with the key for it.
    pub key_env: String,
    /// How long it may take.
    pub timeout: Duration,
    /// Whether a search goes on without facts when it does not answer.
    pub fallback: bool,
}

impl FactFilterArgs {
    /// What the flags mean together; `None` where no model is named.
    ///
    /// # Errors
    /// If it is given no time.
    pub fn resolve(self) -> Result<Option<FactFilterConfig>, ConfigError> {
        let (Some(url), Some(model)) = (self.fact_filter_url, self.fact_filter_model) else { return Ok(None) };
        if self.fact_filter_timeout_ms == 0 {
            return Err(ConfigError::Zero("fact-filter-timeout-ms"));
        }
        let timeout = Duration::from_millis(self.fact_filter_timeout_ms);
        let (key_env, fallback) = (self.fact_filter_key_env, self.fact_filter_fallback);
        Ok(Some(FactFilterConfig { url, model, key_env, timeout, fallback }))
    }
}
