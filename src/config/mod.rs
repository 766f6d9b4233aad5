//! Configuration in two steps: what was typed ([`ServeArgs`]) and what it means ([`ServeConfig`]). One file per group of
//! flags.

mod access;
mod connection;
mod device;
mod filter;
mod http;
mod log;
mod model;
mod responses;
mod retrieval;
mod size;
mod telemetry;
mod tls;
mod trace;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::api::auth::SecretError;

pub use access::{AccessArgs, AccessConfig, TypedKey};
pub use connection::{ConnectionArgs, ConnectionConfig};
pub use device::{Device, DeviceArgs, DeviceConfig, StepArgs};
pub use filter::{FactFilterArgs, FactFilterConfig};
pub use http::{HttpArgs, HttpConfig};
pub use log::LogFormat;
pub use model::{DEFAULT_MODEL, ModelArgs, ModelConfig, base_model};
pub use responses::{ResponseArgs, ResponseLimits};
pub use retrieval::{RetrievalArgs, RetrievalConfig};
pub use size::Size;
pub use telemetry::TelemetryArgs;
pub use tls::{TlsArgs, TlsConfig};
pub use trace::{ResumeConfig, TraceArgs, TraceConfig};

/// What `waymark serve` was asked for, flag by flag. Every flag can also be set by the environment variable its help
/// names.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Address to listen on.
    #[arg(long, env = "WAYMARK_HOST", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// Port to listen on; 0 takes a free one and prints it.
    #[arg(long, env = "WAYMARK_PORT", default_value_t = 8080)]
    pub port: u16,

    /// Directory of a policy to serve (`policy.toml`, maybe an adapter); may be given several times. Read again on SIGHUP.
    #[arg(long = "policy", env = "WAYMARK_POLICY", value_name = "DIR", value_delimiter = ',')]
    pub policies: Vec<PathBuf>,

    /// Folder whose policies may be loaded, replaced and unloaded over HTTP while serving (`/v1/policies`); without it
    /// nobody can.
    #[arg(long, env = "WAYMARK_POLICY_ROOT", value_name = "DIR")]
    pub policy_root: Option<PathBuf>,

    /// What the model is computed with.
    #[command(flatten)]
    pub model: ModelArgs,

    /// What is searched, and how.
    #[command(flatten)]
    pub retrieval: RetrievalArgs,

    /// How requests are taken.
    #[command(flatten)]
    pub http: HttpArgs,

    /// Who may use the server, and from where.
    #[command(flatten)]
    pub access: AccessArgs,

    /// What the server proves itself with.
    #[command(flatten)]
    pub tls: TlsArgs,

    /// How the log is written.
    #[arg(long, env = "WAYMARK_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Who is told what requests take.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// A combination of flags that makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A number that must not be zero is.
    #[error("--{0} must be at least 1")]
    Zero(&'static str),
    /// More tokens decode in a step than a step may compute.
    #[error("--step-tokens {step_tokens} is smaller than --max-batch {max_batch}: raise one or lower the other")]
    StepTooSmall {
        /// The value of `--step-tokens`.
        step_tokens: usize,
        /// The value of `--max-batch`.
        max_batch: usize,
    },
    /// The mock has no weights to apply an adapter to.
    #[error("--mock does not take --policy: it serves policies of its own")]
    MockWithPolicies,
    /// The mock has no weights to multiply with.
    #[error("--mock does not take --arithmetic: it computes nothing")]
    MockWithArithmetic,
    /// What was given as a key is none.
    #[error("--api-key: {0}")]
    Key(SecretError),
    /// No browser would send this as the origin of a page.
    #[error("--cors-origin {0}: give a scheme and a host, such as `https://example.org`, without a path; or `*`")]
    Origin(String),
}

/// What the flags mean.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Where to listen.
    pub address: SocketAddr,
    /// What the model is computed with and where its weights come from.
    pub model: ModelConfig,
    /// The policies to serve besides the built-in ones.
    pub policies: Vec<PathBuf>,
    /// The folder whose policies can be loaded over HTTP.
    pub policy_root: Option<PathBuf>,
    /// What is searched.
    pub retrieval: RetrievalConfig,
    /// How requests are taken.
    pub http: HttpConfig,
    /// Where API keys come from.
    pub access: AccessConfig,
    /// What the server proves itself with, if anything.
    pub tls: Option<TlsConfig>,
}

/// How many threads this machine runs at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn or_cores(threads: usize) -> usize {
    if threads == 0 { cores() } else { threads }
}

fn at_least_one(numbers: &[(&'static str, usize)]) -> Result<(), ConfigError> {
    match numbers.iter().find(|(_, number)| *number == 0) {
        Some((name, _)) => Err(ConfigError::Zero(name)),
        None => Ok(()),
    }
}

impl ServeArgs {
    /// What the flags mean together.
    ///
    /// # Errors
    /// A combination that makes no sense.
    pub fn resolve(self) -> Result<ServeConfig, ConfigError> {
        if self.model.mock && !self.policies.is_empty() {
            return Err(ConfigError::MockWithPolicies);
        }
        Ok(ServeConfig {
            address: SocketAddr::new(self.host, self.port),
            model: self.model.resolve(self.policies.first().map(PathBuf::as_path))?,
            policies: self.policies,
            policy_root: self.policy_root,
            retrieval: self.retrieval.resolve()?,
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
    fn the_readme_names_every_variable() {
        let readme = include_str!("../../README.md");
        for flag in ServeArgs::augment_args(Command::new("serve")).get_arguments() {
            let name = flag.get_env().unwrap().to_str().unwrap();
            assert!(readme.contains(&format!("`{name}`")), "{name}");
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
        let (bare, whole) = (dir("bare"), dir("whole"));
        let model = root.path().join("whole/model");
        std::fs::create_dir(&model).unwrap();
        let weights = |flags: &[&str]| parse(flags).unwrap().resolve().unwrap().model.weights.unwrap();
        assert_eq!(weights(&["--policy", &whole, "--policy", &bare]), model.to_str().unwrap());
        assert_eq!(weights(&["--policy", &whole, "--model", DEFAULT_MODEL]), DEFAULT_MODEL);
        for other in [bare.as_str(), "no/such/policy"] {
            assert_eq!(weights(&["--policy", other]), DEFAULT_MODEL, "{other}");
        }
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
        assert!(parse(&["--mock-step-ms", "5"]).is_err() && parse(&["--mock", "--mock-step-ms", "5"]).is_ok());
        assert!(parse(&["--fact-filter-url", "http://x"]).is_err());
        let filter = ["--fact-filter-url", "http://x", "--fact-filter-model", "m", "--fact-filter-timeout-ms", "0"];
        assert_eq!(error(&filter), "--fact-filter-timeout-ms must be at least 1");
        assert!(error(&["--cors-origin", "example.org/path"]).contains("--cors-origin example.org/path"));
        assert_eq!(error(&["--max-connections", "0"]), "--max-connections must be at least 1");
        assert!(parse(&["--tls-cert", "a.pem"]).is_err());
        assert!(parse(&["--drain-seconds", "-1"]).is_err() && parse(&["--port", "70000"]).is_err());
    }
}
