//! Configuration of the server in two steps: flags ([`ServeArgs`]) and their meaning ([`ServeConfig`]). One file per
//! group of flags.

mod access;
mod connection;
mod files;
mod flag_file;
mod http;
#[cfg(test)]
mod reference;
mod responses;
mod state;
mod telemetry;
mod tls;
mod trace;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use waymark_agent::Policy;
use waymark_runtime::config::{
    FleetArgs, FleetConfig, LogFormat, ModelArgs, ModelConfig, RetrievalArgs, RetrievalConfig, seconds,
};

use crate::keys::SecretError;

pub use access::{AccessArgs, AccessConfig, TypedKey};
pub use connection::{ConnectionArgs, ConnectionConfig};
pub use files::{FileArgs, FileConfig, FileLimits};
pub use flag_file::{FlagFile, FlagFileError};
pub use http::{HttpArgs, HttpConfig};
pub use responses::{ResponseArgs, ResponseLimits};
pub use state::{StateArgs, StateConfig, StateLocation};
pub use telemetry::TelemetryArgs;
pub use tls::{TlsArgs, TlsConfig};
pub use trace::{ResumeConfig, TraceArgs, TraceConfig};

/// Flags of `waymark serve`. The environment variable named in a flag's help sets the flag as well.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// File of flags (TOML), each under its name without `--`, such as `port = 9000`. Flags on the command line and
    /// environment variables take precedence.
    #[arg(long, env = "WAYMARK_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Address to listen on.
    #[arg(long, env = "WAYMARK_HOST", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// Port to listen on; 0 picks a free port and prints it.
    #[arg(long, env = "WAYMARK_PORT", default_value_t = 8080)]
    pub port: u16,

    /// Directory of a policy to serve (`policy.toml` and an adapter, if it has one); may be given several times. Read
    /// again on SIGHUP.
    #[arg(long = "policy", env = "WAYMARK_POLICY", value_name = "DIR", value_delimiter = ',')]
    pub policies: Vec<PathBuf>,

    /// Protocol in which the weights of `--model` were trained, such as `search-r1`. They are served under their own name,
    /// unguided, with the sampling parameters of their `generation_config.json`.
    #[arg(long, env = "WAYMARK_PROTOCOL", value_name = "PROTOCOL", requires = "model", conflicts_with = "mock",
        value_parser = PossibleValuesParser::new(Policy::BUILTIN))]
    pub protocol: Option<String>,

    /// Folder whose policies clients may load, replace and unload over HTTP (`/v1/policies`). Without it, clients
    /// cannot.
    #[arg(long, env = "WAYMARK_POLICY_ROOT", value_name = "DIR")]
    pub policy_root: Option<PathBuf>,

    /// Flags for the model.
    #[command(flatten, next_help_heading = "Model")]
    pub model: ModelArgs,

    /// Flags for engines elsewhere.
    #[command(flatten, next_help_heading = "Engines elsewhere")]
    pub fleet: FleetArgs,

    /// Flags for retrieval.
    #[command(flatten, next_help_heading = "Retrieval")]
    pub retrieval: RetrievalArgs,

    /// Flags for vector stores and files that clients create.
    #[command(flatten, next_help_heading = "Vector stores")]
    pub files: FileArgs,

    /// Flags for HTTP.
    #[command(flatten, next_help_heading = "HTTP")]
    pub http: HttpArgs,

    /// Seconds between two checks for a new snapshot of an index at a URL.
    #[arg(help_heading = "Retrieval", long, env = "WAYMARK_INDEX_POLL_SECONDS", value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    pub index_poll_seconds: f64,

    /// Flags for the state.
    #[command(flatten, next_help_heading = "State")]
    pub state: StateArgs,

    /// Flags for access.
    #[command(flatten, next_help_heading = "Access")]
    pub access: AccessArgs,

    /// Flags for TLS.
    #[command(flatten, next_help_heading = "TLS")]
    pub tls: TlsArgs,

    /// Format of the log.
    #[arg(help_heading = "Log and traces", long, env = "WAYMARK_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Flags for tracing.
    #[command(flatten, next_help_heading = "Log and traces")]
    pub telemetry: TelemetryArgs,
}

/// Error returned for flags that are invalid or contradict each other.
#[derive(Debug, thiserror::Error)]
pub enum ServeConfigError {
    /// A combination of the flags for models and retrieval is invalid.
    #[error(transparent)]
    Parts(#[from] waymark_runtime::config::ConfigError),
    /// The mock has no weights to apply an adapter to.
    #[error("--mock does not take --policy: it serves its own policies")]
    MockWithPolicies,
    /// The API key is invalid.
    #[error("--api-key: {0}")]
    Key(SecretError),
    /// The host name has a scheme, a port or a path.
    #[error("--allowed-host {0}: give a name without a port, such as `rag.example.org`; or `*`")]
    Host(String),
    /// The CORS origin is not a scheme and a host.
    #[error("--cors-origin {0}: give a scheme and a host, such as `https://example.org`, without a path; or `*`")]
    Origin(String),
}

/// Configuration of the server.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Configuration of the model.
    pub model: ModelConfig,
    /// Engines elsewhere that sample the tokens. `None` samples them in this process.
    pub fleet: Option<FleetConfig>,
    /// Directories of policies to serve besides the built-in ones.
    pub policies: Vec<PathBuf>,
    /// Protocol in which the weights were trained, for a policy without a file.
    pub protocol: Option<String>,
    /// Folder whose policies can be loaded over HTTP.
    pub policy_root: Option<PathBuf>,
    /// Configuration of retrieval.
    pub retrieval: RetrievalConfig,
    /// Pause between two checks for a new snapshot of an index at a URL.
    pub index_poll: Duration,
    /// Configuration of vector stores and files that clients create.
    pub files: FileConfig,
    /// Configuration of HTTP.
    pub http: HttpConfig,
    /// Location and limits of the state.
    pub state: StateConfig,
    /// Sources of API keys.
    pub access: AccessConfig,
    /// Certificates for TLS. `None` serves plain HTTP.
    pub tls: Option<TlsConfig>,
}

impl ServeArgs {
    /// Resolves the flags.
    ///
    /// # Errors
    /// If flags are invalid or contradict each other.
    pub fn resolve(self) -> Result<ServeConfig, ServeConfigError> {
        if self.model.mock && !self.policies.is_empty() {
            return Err(ServeConfigError::MockWithPolicies);
        }
        let mut policies = self.policies;
        // A policy.toml next to the weights says how they were trained.
        let beside = self.model.model.as_ref().map(PathBuf::from).filter(|dir| dir.join("policy.toml").is_file());
        if policies.is_empty() && self.protocol.is_none() && !self.model.mock {
            policies.extend(beside);
        }
        Ok(ServeConfig {
            address: SocketAddr::new(self.host, self.port),
            // The first policy names the base model if no flag does.
            model: self.model.resolve(policies.first().map(PathBuf::as_path))?,
            fleet: self.fleet.resolve()?,
            policies,
            protocol: self.protocol,
            policy_root: self.policy_root,
            retrieval: self.retrieval.resolve()?,
            // Without any pause, a replica would ask the object store all the time.
            index_poll: Duration::from_secs_f64(self.index_poll_seconds.max(0.1)),
            files: self.files.resolve(),
            state: self.state.resolve(),
            // Needs the access flags before the next line consumes them.
            http: self.http.resolve(&self.access)?,
            access: self.access.resolve()?,
            tls: self.tls.resolve(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use clap::{Args, Command, FromArgMatches};
    use waymark_runtime::config::DEFAULT_MODEL;

    fn parse(flags: &[&str]) -> Result<ServeArgs, clap::Error> {
        let command = ServeArgs::augment_args(Command::new("serve").no_binary_name(true));
        ServeArgs::from_arg_matches(&command.try_get_matches_from(flags)?)
    }

    #[test]
    fn every_flag_has_help_and_an_environment_variable() {
        for flag in ServeArgs::augment_args(Command::new("serve")).get_arguments() {
            let env = flag.get_env().map(|name| name.to_string_lossy().into_owned());
            assert!(env.as_deref().is_some_and(|name| name.starts_with("WAYMARK_")), "{}", flag.get_id());
            assert!(flag.get_help().is_some(), "{}", flag.get_id());
        }
    }

    #[test]
    fn defaults_resolve() {
        let config = parse(&[]).unwrap().resolve().unwrap();
        assert_eq!(config.address.port(), 8080);
        assert!(config.model.weights.is_some() && config.model.threads > 0);
        assert_eq!(config.http.body_limit, 2 << 20);
    }

    #[test]
    fn the_model_is_the_named_one_or_the_one_that_the_first_policy_brings() {
        let root = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let dir = root.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("policy.toml"), "name = \"a\"\nprotocol = \"plain\"\nbase = \"model\"\n").unwrap();
            dir.to_str().unwrap().to_owned()
        };
        let bare = dir("bare");
        let whole = dir("whole");
        let model = root.path().join("whole/model");
        std::fs::create_dir(&model).unwrap();
        let weights = |flags: &[&str]| parse(flags).unwrap().resolve().unwrap().model.weights.unwrap();
        assert_eq!(weights(&["--policy", &whole, "--policy", &bare]), model.to_str().unwrap());
        assert_eq!(weights(&["--policy", &whole, "--model", DEFAULT_MODEL]), DEFAULT_MODEL);
        for other in [bare.as_str(), "no/such/policy"] {
            let refused = parse(&["--policy", other]).unwrap().resolve().unwrap_err().to_string();
            assert!(refused.contains("model") || refused.contains(other), "{refused}");
        }
    }

    #[test]
    fn a_checkpoint_is_served_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().to_str().unwrap();
        let config = parse(&["--model", model, "--protocol", "search-r1"]).unwrap().resolve().unwrap();
        assert_eq!((config.model.weights.as_deref(), config.protocol.as_deref()), (Some(model), Some("search-r1")));
        assert!(
            parse(&["--protocol", "search-r1"]).is_err() && parse(&["--model", model, "--protocol", "rag"]).is_err()
        );
        // The file next to the weights is theirs, unless the protocol is given.
        std::fs::write(dir.path().join("policy.toml"), "").unwrap();
        let policies = |flags: &[&str]| parse(flags).unwrap().resolve().unwrap().policies;
        assert_eq!(policies(&["--model", model]), [dir.path()]);
        assert!(policies(&["--model", model, "--protocol", "search-r1"]).is_empty());
    }

    #[test]
    fn a_key_is_not_shown() {
        let key = "wm_0123456789abcdef0123456789abcdef";
        let args = parse(&["--api-key", key]).unwrap();
        assert!(!format!("{args:?} {:?}", args.clone().resolve().unwrap()).contains(&key[3..]));
        let refused = parse(&["--api-key", "short-but-secret"]).unwrap().resolve().unwrap_err().to_string();
        assert!(refused.contains("at least 24") && !refused.contains("short-but"), "{refused}");
        let env = ServeArgs::augment_args(Command::new("serve"));
        let flag = env.get_arguments().find(|flag| flag.get_id() == "api_key").unwrap();
        assert!(flag.is_hide_env_values_set());
    }

    #[test]
    fn nonsense_is_refused_with_what_to_change() {
        let error = |flags: &[&str]| parse(flags).unwrap().resolve().unwrap_err().to_string();
        assert_eq!(error(&["--max-batch", "0"]), "--max-batch must be at least 1");
        assert!(error(&["--max-batch", "64", "--step-tokens", "32"]).contains("raise one"));
        assert!(error(&["--mock", "--policy", "x"]).contains("--mock"));
        assert!(error(&["--mock", "--arithmetic", "bf16"]).contains("--arithmetic"));
        assert!(
            parse(&["--arithmetic", "f16"]).is_err() && parse(&["--arithmetic", "bf16"]).unwrap().resolve().is_ok()
        );
        assert!(error(&["--mock-step-ms", "5"]).contains("--mock-step-ms 5"));
        for flags in [&["--mock-step-ms", "0"][..], &["--mock", "--mock-step-ms", "5"]] {
            assert!(parse(flags).unwrap().resolve().is_ok(), "{flags:?}");
        }
        assert!(parse(&["--fact-filter-url", "http://x"]).is_err());
        let filter = ["--fact-filter-url", "http://x", "--fact-filter-model", "m", "--fact-filter-timeout-ms", "0"];
        assert_eq!(error(&filter), "--fact-filter-timeout-ms must be at least 1");
        assert!(error(&["--cors-origin", "example.org/path"]).contains("--cors-origin example.org/path"));
        assert!(error(&["--allowed-host", "example.org:80"]).contains("--allowed-host example.org:80"));
        assert_eq!(error(&["--max-connections", "0"]), "--max-connections must be at least 1");
        assert!(parse(&["--tls-cert", "a.pem"]).is_err());
        assert!(parse(&["--drain-seconds", "-1"]).is_err() && parse(&["--port", "70000"]).is_err());
    }
}
