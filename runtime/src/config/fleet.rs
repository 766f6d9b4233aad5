//! Flags for engines elsewhere.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::{ConfigError, at_least_one, seconds};

/// Flags for engines elsewhere.
#[derive(Debug, Clone, clap::Args)]
pub struct FleetArgs {
    /// Remote engine that samples the tokens, such as `vllm=http://host:8000` or `waymark=http://host:8080`: a server,
    /// or the router in front of several. May be given several times. Of `--model`, only the tokenizer and the chat
    /// template are then loaded, not the weights.
    #[arg(long = "engine", env = "WAYMARK_ENGINE", value_name = "KIND=URL", value_delimiter = ',')]
    pub engines: Vec<EngineAddress>,

    /// Name of the base model at the engines. The default is the only base model that they serve.
    #[arg(long, env = "WAYMARK_ENGINE_MODEL", value_name = "NAME")]
    pub engine_model: Option<String>,

    /// Environment variable that holds the API key of the engines. If it is unset, no key is sent.
    #[arg(long, env = "WAYMARK_ENGINE_KEY_ENV", value_name = "VARIABLE", default_value = "WAYMARK_ENGINE_KEY")]
    pub engine_key_env: String,

    /// File of CA certificates (PEM) to trust instead of the public ones for engines at `https://`.
    #[arg(long, env = "WAYMARK_ENGINE_CA", value_name = "FILE")]
    pub engine_ca: Option<PathBuf>,

    /// Folder that the engines share with this server under the same path. The adapters of policies are copied into it,
    /// each under its own name. Without it, policies with adapters are refused.
    #[arg(long, env = "WAYMARK_ENGINE_ADAPTERS", value_name = "DIR")]
    pub engine_adapters: Option<PathBuf>,

    /// Maximum number of concurrent generations at the engines. Beyond it, new sessions get 503, and later turns of a
    /// session wait.
    #[arg(long, env = "WAYMARK_ENGINE_REQUESTS", value_name = "N", default_value_t = 256)]
    pub engine_requests: usize,

    /// Seconds within which a connection to an engine must be established.
    #[arg(long, env = "WAYMARK_ENGINE_CONNECT_SECONDS", value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    pub engine_connect_seconds: f64,

    /// Seconds within which the first token of a generation must arrive.
    #[arg(long, env = "WAYMARK_ENGINE_FIRST_TOKEN_SECONDS", value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub engine_first_token_seconds: f64,

    /// Seconds within which each further token must arrive.
    #[arg(long, env = "WAYMARK_ENGINE_TOKEN_SECONDS", value_name = "S", default_value_t = 20.0, value_parser = seconds)]
    pub engine_token_seconds: f64,
}

/// Server program of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// Waymark.
    Waymark,
}

/// Address of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineAddress {
    /// Server program.
    pub kind: EngineKind,
    /// URL without a slash at the end.
    pub url: String,
}

/// Error returned for an invalid address of an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineAddressError {
    /// The kind is missing or unknown.
    #[error("invalid engine {0:?}: expected `vllm=http://host:8000` or `waymark=http://host:8080`")]
    Kind(String),
    /// The URL is not the address of an HTTP server.
    #[error("invalid engine URL {0:?}: expected http:// or https:// and a host")]
    Url(String),
}

impl FromStr for EngineAddress {
    type Err = EngineAddressError;

    fn from_str(text: &str) -> Result<Self, EngineAddressError> {
        let wrong = || EngineAddressError::Kind(text.to_owned());
        let (kind, url) = text.split_once('=').ok_or_else(wrong)?;
        let kind = match kind {
            "vllm" => EngineKind::Vllm,
            "waymark" => EngineKind::Waymark,
            _ => return Err(wrong()),
        };
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
        if rest.is_empty() || rest.starts_with('/') || rest.contains(char::is_whitespace) {
            return Err(EngineAddressError::Url(url.to_owned()));
        }
        Ok(Self { kind, url: url.trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// Configuration of engines elsewhere.
#[derive(Debug, Clone)]
pub struct FleetConfig {
    /// Addresses of the engines; at least one.
    pub engines: Vec<EngineAddress>,
    /// Name of the model. `None` takes the only base model that is served.
    pub model: Option<String>,
    /// Environment variable that holds the API key.
    pub key_env: String,
    /// File of CA certificates to trust. `None` trusts the public ones.
    pub ca: Option<PathBuf>,
    /// Folder for adapters, under the same path as at the engines. `None` refuses adapters.
    pub adapters: Option<PathBuf>,
    /// Maximum number of generations at once. Beyond it, new sessions are refused, and later turns wait.
    pub requests: usize,
    /// Time limits.
    pub timeouts: FleetTimeouts,
}

/// Time limits of requests to engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetTimeouts {
    /// Limit of connecting.
    pub connect: Duration,
    /// Limit from the request to its first token.
    pub first_token: Duration,
    /// Limit between two tokens.
    pub token: Duration,
    /// Pause before the first attempt to reach an engine again. Doubles with each attempt, up to 32 times as long.
    pub recheck: Duration,
    /// Time after an identity check during which closed connections do not cause another check. Idle connections also
    /// close without a restart of the engine.
    pub closed: Duration,
}

impl Default for FleetTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            first_token: Duration::from_secs(60),
            token: Duration::from_secs(20),
            recheck: Duration::from_secs(1),
            closed: Duration::from_secs(60),
        }
    }
}

impl FleetArgs {
    /// Resolves the flags. `None` without engines elsewhere.
    ///
    /// # Errors
    /// If the number of requests is zero.
    pub fn resolve(self) -> Result<Option<FleetConfig>, ConfigError> {
        at_least_one(&[("engine-requests", self.engine_requests)])?;
        if self.engines.is_empty() {
            return Ok(None);
        }
        let timeouts = FleetTimeouts {
            connect: Duration::from_secs_f64(self.engine_connect_seconds),
            first_token: Duration::from_secs_f64(self.engine_first_token_seconds),
            token: Duration::from_secs_f64(self.engine_token_seconds),
            ..FleetTimeouts::default()
        };
        Ok(Some(FleetConfig {
            engines: self.engines,
            model: self.engine_model,
            key_env: self.engine_key_env,
            ca: self.engine_ca,
            adapters: self.engine_adapters,
            requests: self.engine_requests,
            timeouts,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_have_a_kind_and_a_url() {
        let parsed: EngineAddress = "vllm=http://gpu:8000/".parse().unwrap();
        assert_eq!(parsed, EngineAddress { kind: EngineKind::Vllm, url: "http://gpu:8000".to_owned() });
        assert_eq!("waymark=http://[::1]:1/x".parse::<EngineAddress>().unwrap().kind, EngineKind::Waymark);
        assert_eq!("vllm=https://gpu/v/".parse::<EngineAddress>().unwrap().url, "https://gpu/v");
        let refused = |text: &str| text.parse::<EngineAddress>().unwrap_err().to_string();
        for text in ["http://gpu:8000", "sglang=http://gpu:1", "vllm"] {
            assert!(refused(text).contains("vllm=http://host:8000"), "{text}");
        }
        for text in ["vllm=https://", "vllm=http://", "vllm=gpu:8000", "vllm=http:// gpu"] {
            assert!(refused(text).contains("expected http:// or https://"), "{text}");
        }
    }
}
