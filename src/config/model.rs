//! What the model is computed with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use waymark_models::BLOCK;
use waymark_models::cuda::plan::Limits;

use super::{ConfigError, DeviceArgs, DeviceConfig, Size, at_least_one, or_cores};
use crate::agent::Policy;

/// The base model that is served when none is named: a name in the catalog.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// The base model to load: the one that was named, or the one that the policy in the directory `first` brings, or
/// [`DEFAULT_MODEL`]. What is wrong with the policy is said by whoever loads it.
pub fn base_model(named: Option<String>, first: Option<&Path>) -> String {
    let brought = || Some(Policy::open(first?).ok()?.model_dir()?.to_string_lossy().into_owned());
    named.or_else(brought).unwrap_or_else(|| DEFAULT_MODEL.to_owned())
}

/// What the model is computed with, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    /// Base model: a name in the catalog, a path to a GGUF file or a checkpoint directory, or a hub id (`org/name`). When not
    /// given, the one that the first policy brings, or smollm2-135m-instruct.
    #[arg(long, env = "WAYMARK_MODEL")]
    pub model: Option<String>,

    /// What computes.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Threads that compute; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    pub threads: usize,

    /// Memory for the KV cache, such as `512MiB` or `2GiB`.
    #[arg(long, visible_alias = "kv-memory", env = "WAYMARK_KV_BYTES", value_name = "SIZE", default_value = "1GiB")]
    pub kv_bytes: Size,

    /// Take the memory of the KV cache at the start, not as it is first used: what the server needs shows at once. For the
    /// processor; a card's is always taken at the start.
    #[arg(long, env = "WAYMARK_KV_RESERVE")]
    pub kv_reserve: bool,

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

    /// Serve a scripted mock instead of a model: no weights, no sense, the whole interface.
    #[arg(long, env = "WAYMARK_MOCK")]
    pub mock: bool,

    /// Milliseconds each step of the mock takes, for load tests at the pace of a model.
    #[arg(long, env = "WAYMARK_MOCK_STEP_MS", default_value_t = 0, requires = "mock")]
    pub mock_step_ms: u64,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// What the model is computed with and where its weights come from.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// `None` for the mock, otherwise a catalog name, a path or a hub id.
    pub weights: Option<String>,
    /// How long each step of the mock takes.
    pub mock_step: Duration,
    /// Where downloads are kept.
    pub cache: Option<PathBuf>,
    /// What computes.
    pub device: DeviceConfig,
    /// Threads that compute.
    pub threads: usize,
    /// Bytes for the KV cache.
    pub kv_bytes: usize,
    /// Whether they are taken at the start.
    pub kv_reserve: bool,
    /// Sequences in one step at most.
    pub max_batch: usize,
    /// Tokens in one step at most.
    pub step_tokens: usize,
    /// Generations that may wait.
    pub max_waiting: usize,
    /// Longest sequence, if not the model's own limit.
    pub context: Option<usize>,
}

impl ModelConfig {
    /// The most a step may be on a card, of a model that was made for sequences of `context` tokens.
    pub fn steps(&self, context: usize) -> Limits {
        Limits {
            rows: self.max_batch,
            // A step full of decoding rows still takes one block of somebody's prompt.
            tokens: self.step_tokens.max(self.max_batch + BLOCK),
            context: self.context.unwrap_or(context),
        }
    }
}

impl ModelArgs {
    /// What the flags mean together, where the policy in the directory `first` is the first one.
    ///
    /// # Errors
    /// If a number is zero, a step cannot hold a batch, or the mock is to compute in an arithmetic.
    pub fn resolve(self, first: Option<&Path>) -> Result<ModelConfig, ConfigError> {
        if self.mock && self.device.arithmetic.is_some() {
            return Err(ConfigError::MockWithArithmetic);
        }
        at_least_one(&[
            ("max-batch", self.max_batch),
            ("step-tokens", self.step_tokens),
            ("max-waiting", self.max_waiting),
            ("kv-bytes", self.kv_bytes.0),
            ("context", self.context.unwrap_or(1)),
        ])?;
        if self.step_tokens < self.max_batch {
            return Err(ConfigError::StepTooSmall { step_tokens: self.step_tokens, max_batch: self.max_batch });
        }
        Ok(ModelConfig {
            weights: (!self.mock).then(|| base_model(self.model, first)),
            mock_step: Duration::from_millis(self.mock_step_ms),
            cache: self.cache,
            device: self.device.resolve(),
            threads: or_cores(self.threads),
            kv_bytes: self.kv_bytes.0,
            kv_reserve: self.kv_reserve,
            max_batch: self.max_batch,
            step_tokens: self.step_tokens,
            max_waiting: self.max_waiting,
            context: self.context,
        })
    }
}
