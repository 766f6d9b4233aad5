//! Flags for the reranker.

use std::path::PathBuf;
use std::time::Duration;

use super::ConfigError;
use super::embedder::is_url;

/// Flags for the reranker.
#[derive(Debug, Clone, clap::Args)]
pub struct RerankerArgs {
    /// Reranker for searches with `rerank` and for `/v1/rerank`: a name in the catalog, a directory with a cross-encoder, the
    /// URL of an endpoint, or `mock`, which counts shared words. A URL that ends in `/v1/rerank` is asked in the form of
    /// Cohere and Jina, one that ends in `/rerank` alone in that of text-embeddings-inference.
    #[arg(long, env = "WAYMARK_RERANKER", value_name = "NAME|DIR|URL")]
    pub reranker: Option<String>,

    /// Model to ask for at the endpoint of `--reranker`.
    #[arg(long, env = "WAYMARK_RERANKER_MODEL", value_name = "NAME", requires = "reranker")]
    pub reranker_model: Option<String>,

    /// Environment variable that holds the API key of that endpoint. If it is unset, no key is sent.
    #[arg(long, env = "WAYMARK_RERANKER_KEY_ENV", value_name = "VARIABLE", default_value = "RERANKER_API_KEY")]
    pub reranker_key_env: String,

    /// File of CA certificates (PEM) to trust instead of the public ones when that endpoint uses HTTPS.
    #[arg(long, env = "WAYMARK_RERANKER_CA", value_name = "FILE")]
    pub reranker_ca: Option<PathBuf>,

    /// Timeout of one request to that endpoint, in milliseconds.
    #[arg(long, env = "WAYMARK_RERANKER_TIMEOUT_MS", value_name = "MS", default_value_t = 2000)]
    pub reranker_timeout_ms: u64,
}

/// Configuration of the reranker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RerankerConfig {
    /// Catalog name, hub ID or directory of a cross-encoder, or `mock`.
    Weights(String),
    /// An endpoint elsewhere.
    Endpoint {
        /// URL of the endpoint.
        url: String,
        /// Name of the model at the endpoint. `None` leaves the choice to the endpoint.
        model: Option<String>,
        /// Environment variable that holds the API key.
        key_env: String,
        /// File of CA certificates to trust. `None` trusts the public ones.
        ca: Option<PathBuf>,
        /// Timeout of one request.
        timeout: Duration,
    },
}

impl RerankerConfig {
    /// Name of the reranker in requests: the name of the endpoint's model, the last part of a path, or else `reranker`.
    pub fn name(&self) -> String {
        match self {
            RerankerConfig::Endpoint { model: Some(model), .. } => model.clone(),
            RerankerConfig::Endpoint { .. } => "reranker".to_owned(),
            RerankerConfig::Weights(spec) => {
                let last = std::path::Path::new(spec).file_name();
                last.map_or_else(|| "reranker".to_owned(), |name| name.to_string_lossy().into_owned())
            }
        }
    }
}

impl RerankerArgs {
    /// Resolves the flags. `None` if no reranker is named.
    ///
    /// # Errors
    /// If the timeout is zero, or a model is named without an endpoint.
    pub fn resolve(self) -> Result<Option<RerankerConfig>, ConfigError> {
        let Some(reranker) = self.reranker else { return Ok(None) };
        if !is_url(&reranker) {
            return match self.reranker_model {
                Some(_) => Err(ConfigError::RerankerModel { reranker }),
                None => Ok(Some(RerankerConfig::Weights(reranker))),
            };
        }
        if self.reranker_timeout_ms == 0 {
            return Err(ConfigError::Zero("reranker-timeout-ms"));
        }
        let timeout = Duration::from_millis(self.reranker_timeout_ms);
        Ok(Some(RerankerConfig::Endpoint {
            url: reranker,
            model: self.reranker_model,
            key_env: self.reranker_key_env,
            ca: self.reranker_ca,
            timeout,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn resolved(reranker: Option<&str>, model: Option<&str>, ms: u64) -> Result<Option<RerankerConfig>, String> {
        let args = RerankerArgs {
            reranker: reranker.map(str::to_owned),
            reranker_model: model.map(str::to_owned),
            reranker_key_env: "KEY".to_owned(),
            reranker_ca: None,
            reranker_timeout_ms: ms,
        };
        args.resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn a_url_is_an_endpoint_and_all_else_are_weights() {
        assert_eq!(resolved(None, None, 0), Ok(None));
        let weights = resolved(Some("models/bge-reranker-base"), None, 0).unwrap().unwrap();
        assert_eq!(weights, RerankerConfig::Weights("models/bge-reranker-base".to_owned()));
        assert_eq!(weights.name(), "bge-reranker-base");
        let endpoint = resolved(Some("http://host/v1/rerank"), Some("m"), 5).unwrap().unwrap();
        assert!(matches!(&endpoint, RerankerConfig::Endpoint { timeout, .. } if *timeout == Duration::from_millis(5)));
        assert_eq!(endpoint.name(), "m");
        assert!(resolved(Some("https://host"), None, 0).unwrap_err().contains("reranker-timeout-ms"));
        assert!(resolved(Some("dir"), Some("m"), 5).unwrap_err().contains("\"dir\""));
    }
}
