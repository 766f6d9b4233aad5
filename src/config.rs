//! Configuration in two steps: what was typed ([`ServeArgs`]) and what it means ([`ServeConfig`]).

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The base model that is served when none is named: a name in the catalog.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

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

    /// Base model: a name in the catalog, a path to a GGUF file or a checkpoint directory, or a hub id (`org/name`).
    #[arg(long, env = "WAYMARK_MODEL", default_value = DEFAULT_MODEL)]
    pub model: String,

    /// Directory of a policy to serve (`policy.toml`, maybe an adapter); may be given several times.
    #[arg(long = "policy", env = "WAYMARK_POLICY", value_name = "DIR", value_delimiter = ',')]
    pub policies: Vec<PathBuf>,

    /// Folder whose policies may be loaded, replaced and unloaded over HTTP while serving (`/v1/policies`); without it
    /// nobody can.
    #[arg(long, env = "WAYMARK_POLICY_ROOT", value_name = "DIR")]
    pub policy_root: Option<PathBuf>,

    /// Directory of the index to search, as `waymark index build` leaves it.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR")]
    pub index: Option<PathBuf>,

    /// Only read the index: refuse to change documents over HTTP.
    #[arg(long, env = "WAYMARK_READ_ONLY_INDEX")]
    pub read_only_index: bool,

    /// Embedding model for the index and for `/v1/embeddings`: a name in the catalog or a directory.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    pub embedder: String,

    /// Threads that compute; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    pub threads: usize,

    /// Memory for the KV cache, such as `512MiB` or `2GiB`.
    #[arg(long, visible_alias = "kv-memory", env = "WAYMARK_KV_BYTES", value_name = "SIZE", default_value = "1GiB")]
    pub kv_bytes: Size,

    /// Sequences that decode in one step at most.
    #[arg(long, env = "WAYMARK_MAX_BATCH", default_value_t = 32)]
    pub max_batch: usize,

    /// Tokens one step computes at most, decoded and prefilled together.
    #[arg(long, env = "WAYMARK_STEP_TOKENS", default_value_t = 512)]
    pub step_tokens: usize,

    /// Generations that may wait for a place before new ones are refused with 503.
    #[arg(long, env = "WAYMARK_MAX_WAITING", default_value_t = 256)]
    pub max_waiting: usize,

    /// Longest sequence, in tokens; what the model was trained for when not given.
    #[arg(long, env = "WAYMARK_CONTEXT", value_name = "TOKENS")]
    pub context: Option<usize>,

    /// Seconds that running requests get to finish after SIGTERM.
    #[arg(long, env = "WAYMARK_DRAIN_SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub drain_seconds: f64,

    /// Seconds of silence after which a stream sends a comment to keep its connection open.
    #[arg(long, env = "WAYMARK_PING_SECONDS", default_value_t = 15.0, value_parser = seconds)]
    pub ping_seconds: f64,

    /// Threads that search; 0 takes one per core.
    #[arg(long, env = "WAYMARK_SEARCH_THREADS", default_value_t = 0)]
    pub search_threads: usize,

    /// Milliseconds one search may take.
    #[arg(long, env = "WAYMARK_SEARCH_DEADLINE_MS", default_value_t = 5000)]
    pub search_deadline_ms: u64,

    /// Which language model says which facts graph search follows.
    #[command(flatten)]
    pub fact_filter: FactFilterArgs,

    /// Largest request body, such as `2MiB`.
    #[arg(long, env = "WAYMARK_BODY_LIMIT", value_name = "SIZE", default_value = "2MiB")]
    pub body_limit: Size,

    /// Serve a scripted mock instead of a model: no weights, no sense, the whole interface.
    #[arg(long, env = "WAYMARK_MOCK")]
    pub mock: bool,

    /// How the log is written.
    #[arg(long, env = "WAYMARK_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

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

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for a person.
    Text,
    /// One JSON object per line.
    Json,
}

/// A number of bytes, typed as `512`, `64KiB`, `512MiB` or `2GiB` (`KB`, `MB`, `GB` are powers of ten).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let scale: usize = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            _ => return Err(format!("unknown unit `{unit}`: use KiB, MiB or GiB")),
        };
        let number: usize = number.parse().map_err(|_| "a size begins with a whole number".to_owned())?;
        number.checked_mul(scale).map(Size).ok_or_else(|| "the size is too large".to_owned())
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0 to 86400".to_owned()),
    }
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
}

/// What the model is computed with and where its weights come from.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// `None` for the mock, otherwise a catalog name, a path or a hub id.
    pub weights: Option<String>,
    /// Where downloads are kept.
    pub cache: Option<PathBuf>,
    /// Threads that compute.
    pub threads: usize,
    /// Bytes for the KV cache.
    pub kv_bytes: usize,
    /// Sequences in one step at most.
    pub max_batch: usize,
    /// Tokens in one step at most.
    pub step_tokens: usize,
    /// Generations that may wait.
    pub max_waiting: usize,
    /// Longest sequence, if not the model's own limit.
    pub context: Option<usize>,
}

/// What is searched, and how.
#[derive(Debug, Clone)]
pub struct RetrievalConfig {
    /// The index, if there is one.
    pub index: Option<PathBuf>,
    /// Whether its documents can be changed over HTTP.
    pub writable: bool,
    /// The embedder's catalog name or directory.
    pub embedder: String,
    /// Threads that search.
    pub threads: usize,
    /// How long one search may take.
    pub deadline: Duration,
    /// What says which facts graph search follows.
    pub fact_filter: Option<FactFilterConfig>,
}

/// How requests are taken.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Largest body, in bytes.
    pub body_limit: usize,
    /// Silence after which a stream sends a comment.
    pub ping: Duration,
    /// How long running requests get after the signal to stop.
    pub drain: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self { body_limit: 2 << 20, ping: Duration::from_secs(15), drain: Duration::from_secs(30) }
    }
}

/// How many threads this machine runs at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl ServeArgs {
    /// What the flags mean together.
    ///
    /// # Errors
    /// A combination that makes no sense.
    pub fn resolve(self) -> Result<ServeConfig, ConfigError> {
        for (name, value) in [
            ("max-batch", self.max_batch),
            ("step-tokens", self.step_tokens),
            ("max-waiting", self.max_waiting),
            ("body-limit", self.body_limit.0),
            ("kv-bytes", self.kv_bytes.0),
            ("context", self.context.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero(name));
            }
        }
        if self.step_tokens < self.max_batch {
            return Err(ConfigError::StepTooSmall { step_tokens: self.step_tokens, max_batch: self.max_batch });
        }
        if self.mock && !self.policies.is_empty() {
            return Err(ConfigError::MockWithPolicies);
        }
        let or_cores = |threads: usize| if threads == 0 { cores() } else { threads };
        Ok(ServeConfig {
            address: SocketAddr::new(self.host, self.port),
            model: ModelConfig {
                weights: (!self.mock).then_some(self.model),
                cache: self.cache,
                threads: or_cores(self.threads),
                kv_bytes: self.kv_bytes.0,
                max_batch: self.max_batch,
                step_tokens: self.step_tokens,
                max_waiting: self.max_waiting,
                context: self.context,
            },
            policies: self.policies,
            policy_root: self.policy_root,
            retrieval: RetrievalConfig {
                index: self.index,
                writable: !self.read_only_index,
                embedder: self.embedder,
                threads: or_cores(self.search_threads),
                deadline: Duration::from_millis(self.search_deadline_ms),
                fact_filter: self.fact_filter.resolve()?,
            },
            http: HttpConfig {
                body_limit: self.body_limit.0,
                ping: Duration::from_secs_f64(self.ping_seconds.max(0.1)),
                drain: Duration::from_secs_f64(self.drain_seconds),
            },
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
    fn sizes_have_units() {
        for (text, bytes) in
            [("512", 512), ("64KiB", 65_536), ("2MiB", 2 << 20), ("1 gib", 1 << 30), ("3MB", 3_000_000)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "MiB", "1TiBx", "-1", "99999999999999999999", "9999999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
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
    fn nonsense_is_refused_with_what_to_change() {
        let error = |flags: &[&str]| parse(flags).unwrap().resolve().unwrap_err().to_string();
        assert_eq!(error(&["--max-batch", "0"]), "--max-batch must be at least 1");
        assert!(error(&["--max-batch", "64", "--step-tokens", "32"]).contains("raise one"));
        assert!(error(&["--mock", "--policy", "x"]).contains("--mock"));
        assert!(parse(&["--fact-filter-url", "http://x"]).is_err());
        let filter = ["--fact-filter-url", "http://x", "--fact-filter-model", "m", "--fact-filter-timeout-ms", "0"];
        assert_eq!(error(&filter), "--fact-filter-timeout-ms must be at least 1");
        assert!(parse(&["--drain-seconds", "-1"]).is_err() && parse(&["--port", "70000"]).is_err());
    }
}
