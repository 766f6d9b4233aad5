//! Flags for the embedder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use waymark_index::Manifest;

use super::ConfigError;
use crate::embedding::MOCK;

/// Default of `--embedder` for a new index.
pub const DEFAULT_EMBEDDER: &str = "all-minilm-l6-v2";

/// Default of `--embedder-key-env`.
const KEY_ENV: &str = "EMBEDDER_API_KEY";

/// Default of `--embedder-timeout-ms`. It is below the timeout of a search, so that a failed search reports the
/// endpoint's error.
const TIMEOUT_MS: u64 = 4000;

/// Arithmetic of a local encoder for search queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum QueryArithmetic {
    /// Weights and activations in `f32`.
    #[default]
    F32,
    /// Weights and activations rounded to bytes on CPUs that multiply bytes, and `f32` on others.
    Int8,
}

/// Flags for the embedder.
#[derive(Debug, Clone, clap::Args)]
pub struct EmbedderArgs {
    /// Embedding model: a name in the catalog, a directory, the URL of an endpoint, or `mock`, which needs no weights
    /// and captures little meaning. It must be the model that the index was built with; `/v1/embeddings` serves it too.
    /// A URL that ends in `/embed` gets requests in the format of text-embeddings-inference, any other URL in that of
    /// OpenAI. The default is the model that the index names; for a new index, and for one at a URL, it is
    /// `all-minilm-l6-v2`.
    #[arg(long, env = "WAYMARK_EMBEDDER", value_name = "NAME|DIR|URL")]
    pub embedder: Option<String>,

    /// Name of the model at the endpoint of `--embedder`; not sent to a URL that ends in `/embed`. The index keeps this name,
    /// and refuses embedders of another one.
    #[arg(long, env = "WAYMARK_EMBEDDER_MODEL", value_name = "NAME")]
    pub embedder_model: Option<String>,

    /// Environment variable that holds the API key of that endpoint. If it is unset, no key is sent.
    #[arg(long, env = "WAYMARK_EMBEDDER_KEY_ENV", value_name = "VARIABLE", default_value = KEY_ENV)]
    pub embedder_key_env: String,

    /// File of CA certificates (PEM) to trust instead of the public ones when that endpoint uses HTTPS.
    #[arg(long, env = "WAYMARK_EMBEDDER_CA", value_name = "FILE")]
    pub embedder_ca: Option<PathBuf>,

    /// Timeout for embedding a query at that endpoint, in milliseconds, retries included. A request with texts of the
    /// index may take fifteen times as long.
    #[arg(long, env = "WAYMARK_EMBEDDER_TIMEOUT_MS", value_name = "MS", default_value_t = TIMEOUT_MS)]
    pub embedder_timeout_ms: u64,

    /// Arithmetic for embedding search queries with a local encoder: `f32`, the default, or `int8`, which is faster and
    /// rounds weights and activations to bytes, as an index build does. CPUs without byte multiplication,
    /// ModernBERT-like encoders and decoders compute in f32 either way, and so does `/v1/embeddings`.
    #[arg(long, env = "WAYMARK_QUERY_ARITHMETIC", value_name = "ARITHMETIC", value_enum, hide_possible_values = true)]
    pub query_arithmetic: Option<QueryArithmetic>,
}

/// Configuration of the embedder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbedderConfig {
    /// An encoder on this machine.
    Weights {
        /// Catalog name, hub ID or directory of the encoder, or `mock`.
        name: String,
        /// Arithmetic for search queries.
        query_arithmetic: QueryArithmetic,
    },
    /// An endpoint elsewhere.
    Endpoint {
        /// URL of the endpoint.
        url: String,
        /// Name of the model at the endpoint.
        model: String,
        /// Environment variable that holds the API key.
        key_env: String,
        /// File of CA certificates to trust. `None` trusts the public ones.
        ca: Option<PathBuf>,
        /// Time for the vector of a query.
        timeout: Duration,
    },
}

impl EmbedderConfig {
    /// Name of the embedder in requests: the name of the endpoint's model, or the last part of a path.
    pub fn name(&self) -> String {
        match self {
            EmbedderConfig::Endpoint { model, .. } => model.clone(),
            EmbedderConfig::Weights { name, .. } => {
                let last = Path::new(name).file_name();
                last.map_or_else(|| "embedder".to_owned(), |name| name.to_string_lossy().into_owned())
            }
        }
    }
}

impl EmbedderArgs {
    /// Returns the flags that select the weights `name` on this machine.
    pub fn weights(name: &str) -> Self {
        EmbedderArgs {
            embedder: Some(name.to_owned()),
            embedder_model: None,
            embedder_key_env: KEY_ENV.to_owned(),
            embedder_ca: None,
            embedder_timeout_ms: TIMEOUT_MS,
            query_arithmetic: None,
        }
    }

    /// Resolves the flags for an index that exists already, whose own embedder is the default.
    ///
    /// # Errors
    /// Same as [`resolve`](Self::resolve).
    pub fn resolve_for(&self, index: &Path) -> Result<EmbedderConfig, ConfigError> {
        // An index that cannot be read is reported when it is opened.
        let named = || Manifest::read(index).ok()?.embedder.source;
        // No build writes a URL: a forged index must not choose the host that gets texts and a key.
        let embedder = self.embedder.clone().or_else(|| named().filter(|name| !is_url(name)));
        EmbedderArgs { embedder, ..self.clone() }.resolve()
    }

    /// Resolves the flags.
    ///
    /// # Errors
    /// If the timeout is zero, an endpoint has no model, a model is named without an endpoint, or arithmetic is given without
    /// a local encoder.
    pub fn resolve(&self) -> Result<EmbedderConfig, ConfigError> {
        let EmbedderArgs {
            embedder,
            embedder_model,
            embedder_key_env,
            embedder_ca,
            embedder_timeout_ms,
            query_arithmetic,
        } = self.clone();
        let embedder = embedder.unwrap_or_else(|| DEFAULT_EMBEDDER.to_owned());
        let is_url = is_url(&embedder);
        // The query of the URL may hold a secret.
        let without_secret = |embedder: &str| embedder.split('?').next().unwrap_or_default().to_owned();
        if query_arithmetic.is_some() && (is_url || embedder == MOCK) {
            return Err(ConfigError::QueryArithmetic { embedder: without_secret(&embedder) });
        }
        match embedder_model {
            Some(_) if !is_url => Err(ConfigError::EmbedderModel { embedder }),
            None if !is_url => {
                let query_arithmetic = query_arithmetic.unwrap_or_default();
                Ok(EmbedderConfig::Weights { name: embedder, query_arithmetic })
            }
            None => Err(ConfigError::EmbedderWithoutModel { url: without_secret(&embedder) }),
            Some(_) if embedder_timeout_ms == 0 => Err(ConfigError::Zero("embedder-timeout-ms")),
            Some(model) => Ok(EmbedderConfig::Endpoint {
                url: embedder,
                model,
                key_env: embedder_key_env,
                ca: embedder_ca,
                timeout: Duration::from_millis(embedder_timeout_ms),
            }),
        }
    }
}

/// Returns `true` if the value of `--embedder` or `--reranker` names an endpoint.
pub(super) fn is_url(value: &str) -> bool {
    value.starts_with("http://") || value.starts_with("https://")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn resolved(embedder: &str, model: Option<&str>, ms: u64) -> Result<EmbedderConfig, String> {
        let args = EmbedderArgs {
            embedder_model: model.map(str::to_owned),
            embedder_timeout_ms: ms,
            ..EmbedderArgs::weights(embedder)
        };
        args.resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn a_url_is_an_endpoint_with_a_model_and_all_else_are_weights() {
        let weights = resolved("models/bge-small-en-v1.5", None, 0).unwrap();
        let name = "models/bge-small-en-v1.5".to_owned();
        assert_eq!(weights, EmbedderConfig::Weights { name, query_arithmetic: QueryArithmetic::F32 });
        assert_eq!(weights.name(), "bge-small-en-v1.5");
        let endpoint = resolved("http://host/v1", Some("m"), 5).unwrap();
        assert!(matches!(&endpoint, EmbedderConfig::Endpoint { timeout, .. } if *timeout == Duration::from_millis(5)));
        assert_eq!(endpoint.name(), "m");
        assert!(resolved("https://host", None, 5).unwrap_err().contains("https://host: name the model"));
        let unnamed = resolved("https://host/embeddings?key=secret", None, 5).unwrap_err();
        assert!(unnamed.contains("https://host/embeddings:") && !unnamed.contains("secret"), "{unnamed}");
        assert!(resolved("https://host", Some("m"), 0).unwrap_err().contains("embedder-timeout-ms"));
        assert!(resolved("dir", Some("m"), 5).unwrap_err().contains("\"dir\""));
    }

    #[test]
    fn arithmetic_of_queries_is_that_of_a_local_encoder() {
        let with = |embedder: &str, query_arithmetic| {
            let embedder_model = embedder.starts_with("http").then(|| "m".to_owned());
            EmbedderArgs { embedder_model, query_arithmetic, ..EmbedderArgs::weights(embedder) }.resolve()
        };
        let int8 = Some(QueryArithmetic::Int8);
        let name = "dir".to_owned();
        let weights = EmbedderConfig::Weights { name, query_arithmetic: QueryArithmetic::Int8 };
        assert_eq!(with("dir", int8).unwrap(), weights);
        for (embedder, named) in [("https://host?key=secret", "\"https://host\""), (MOCK, "\"mock\"")] {
            for arithmetic in [int8, Some(QueryArithmetic::F32)] {
                let refused = with(embedder, arithmetic).unwrap_err().to_string();
                assert!(refused.contains("--query-arithmetic") && refused.contains(named), "{refused}");
            }
            with(embedder, None).unwrap();
        }
    }
}
