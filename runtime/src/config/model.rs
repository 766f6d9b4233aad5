//! Flags for the model and its engine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use waymark_models::BLOCK;
use waymark_models::cuda::plan::StepLimits;

use super::{ConfigError, DeviceArgs, DeviceConfig, Size, at_least_one, base_model, or_cores};

/// Flags for the model and its engine.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    /// Base model: a name in the catalog, a path to a GGUF file or a checkpoint directory, or a hub ID (`org/name`).
    /// The default is the one that the first policy includes or names, or `smollm2-135m-instruct` if there is no
    /// policy.
    #[arg(long, env = "WAYMARK_MODEL")]
    pub model: Option<String>,

    /// Flags for the device.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Number of compute threads; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    pub threads: usize,

    /// Memory for the KV cache, such as `512MiB` or `2GiB`.
    #[arg(long, visible_alias = "kv-memory", env = "WAYMARK_KV_BYTES", value_name = "SIZE", default_value = "1GiB")]
    pub kv_bytes: Size,

    /// Allocate the KV cache of the CPU at startup instead of on first use, so memory use is known from the start.
    /// On a GPU it is always allocated at startup.
    #[arg(long, env = "WAYMARK_KV_RESERVE")]
    pub kv_reserve: bool,

    /// Maximum number of sequences that decode in one step. The default is 32 on the CPU, and 256 on a GPU that has the
    /// memory.
    #[arg(long, env = "WAYMARK_MAX_BATCH", value_name = "SEQUENCES")]
    pub max_batch: Option<usize>,

    /// Maximum number of tokens per step, decoded and prefilled together. The default is 512 on the CPU, and 8192 on a
    /// GPU that has the memory.
    #[arg(long, env = "WAYMARK_STEP_TOKENS", value_name = "TOKENS")]
    pub step_tokens: Option<usize>,

    /// Maximum number of draft tokens that a step verifies in each sequence (prompt lookup): the tokens that followed
    /// an earlier occurrence of its last tokens, as in a quotation from the evidence. 0, the default, turns this off.
    /// On the CPU the output stays the same; a GPU rounds differently.
    #[arg(
        long,
        env = "WAYMARK_LOOKUP",
        value_name = "TOKENS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=64)
    )]
    pub lookup: u8,

    /// Maximum number of queued generations; further ones get 503.
    #[arg(long, env = "WAYMARK_MAX_WAITING", default_value_t = 256)]
    pub max_waiting: usize,

    /// Maximum length of a sequence, in tokens. The default is the model's context length.
    #[arg(long, env = "WAYMARK_CONTEXT", value_name = "TOKENS")]
    pub context: Option<usize>,

    /// Serve a scripted mock instead of a model: the whole API works without weights, but the answers are meaningless.
    #[arg(long, env = "WAYMARK_MOCK")]
    pub mock: bool,

    /// Duration of each step of the mock, in milliseconds, for load tests at the pace of a model.
    #[arg(long, env = "WAYMARK_MOCK_STEP_MS", default_value_t = 0)]
    pub mock_step_ms: u64,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// Configuration of the model and its engine.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// Catalog name, path or hub ID of the weights. `None` means the mock.
    pub weights: Option<String>,
    /// Duration of each step of the mock.
    pub mock_step: Duration,
    /// Folder for downloads. `None` means the user's cache directory.
    pub cache: Option<PathBuf>,
    /// Device and its options.
    pub device: DeviceConfig,
    /// Number of compute threads.
    pub threads: usize,
    /// Size of the KV cache, in bytes.
    pub kv_bytes: usize,
    /// If `true`, the KV cache is allocated at the start.
    pub kv_reserve: bool,
    /// Maximum number of sequences in one step. `None` takes the device's default.
    pub max_batch: Option<usize>,
    /// Maximum number of tokens in one step. `None` takes the device's default.
    pub step_tokens: Option<usize>,
    /// Maximum number of tokens that a step verifies ahead in each sequence.
    pub lookup: usize,
    /// Maximum number of queued generations.
    pub max_waiting: usize,
    /// Maximum length of a sequence, in tokens. `None` keeps the model's limit.
    pub context: Option<usize>,
}

/// Largest step of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    /// Maximum number of sequences.
    pub max_batch: usize,
    /// Maximum number of tokens.
    pub step_tokens: usize,
}

/// Default size of a step on the CPU.
const CPU_STEP: StepSize = StepSize { max_batch: 32, step_tokens: 512 };

/// Default sizes of a step on a GPU, of which the first that fits into its memory is taken.
const GPU_STEPS: [StepSize; 3] =
    [StepSize { max_batch: 256, step_tokens: 8192 }, StepSize { max_batch: 64, step_tokens: 2048 }, CPU_STEP];

impl ModelConfig {
    /// Returns the limits of a GPU step of this size, for a model whose context length is `context` tokens.
    pub fn steps(&self, size: StepSize, context: usize) -> StepLimits {
        StepLimits {
            // Each position that a step verifies has logits, and a row of its own in the limits.
            rows: size.max_batch.max(1 + self.lookup),
            // A step full of decoding rows still has room for one block of a prompt, and each row has a token.
            tokens: size.step_tokens.max(size.max_batch + BLOCK).max(1 + self.lookup),
            context: self.context.unwrap_or(context),
        }
    }

    /// Returns the size of a step on the CPU.
    pub fn cpu_step(&self) -> StepSize {
        self.with_requested(CPU_STEP)
    }

    /// Returns the sizes to try for a step on a GPU, the largest first. A size that was requested is the only one.
    pub fn gpu_steps(&self) -> Vec<StepSize> {
        let mut sizes = GPU_STEPS.map(|default| self.with_requested(default)).to_vec();
        if self.max_batch.is_some() || self.step_tokens.is_some() {
            sizes.truncate(1);
        }
        sizes
    }

    /// Returns `default` with the requested numbers in place of its own; a number that was not requested follows the one
    /// that was, such that each sequence of a batch has a token in a step.
    fn with_requested(&self, default: StepSize) -> StepSize {
        let max_batch = self.max_batch.unwrap_or(default.max_batch.min(self.step_tokens.unwrap_or(usize::MAX)));
        StepSize { max_batch, step_tokens: self.step_tokens.unwrap_or(default.step_tokens.max(max_batch)) }
    }
}

impl ModelArgs {
    /// Resolves the flags; `first` is the directory of the first policy.
    ///
    /// # Errors
    /// If a number is zero, a step cannot hold a batch, `--mock` is combined with `--arithmetic` or `--kv`, the pace of
    /// the mock is given without `--mock`, or no base model can be found for the policy.
    pub fn resolve(self, first: Option<&Path>) -> Result<ModelConfig, ConfigError> {
        if self.mock && (self.device.arithmetic.is_some() || self.device.kv.is_some()) {
            return Err(ConfigError::MockWithArithmetic);
        }
        // Checked here rather than by clap, for which a 0 from the environment or a file would need `--mock` too.
        if self.mock_step_ms > 0 && !self.mock {
            return Err(ConfigError::StepWithoutMock(self.mock_step_ms));
        }
        at_least_one(&[
            // Absent flags must not count as zero.
            ("max-batch", self.max_batch.unwrap_or(1)),
            ("step-tokens", self.step_tokens.unwrap_or(1)),
            ("max-waiting", self.max_waiting),
            ("kv-bytes", self.kv_bytes.0),
            ("context", self.context.unwrap_or(1)),
        ])?;
        // Each running sequence decodes one token per step: a smaller step would never schedule the last ones.
        if let (Some(step_tokens), Some(max_batch)) = (self.step_tokens, self.max_batch)
            && step_tokens < max_batch
        {
            return Err(ConfigError::StepTooSmall { step_tokens, max_batch });
        }
        Ok(ModelConfig {
            weights: if self.mock { None } else { Some(base_model(self.model, first)?) },
            mock_step: Duration::from_millis(self.mock_step_ms),
            cache: self.cache,
            device: self.device.resolve(),
            threads: or_cores(self.threads),
            kv_bytes: self.kv_bytes.0,
            kv_reserve: self.kv_reserve,
            max_batch: self.max_batch,
            step_tokens: self.step_tokens,
            lookup: usize::from(self.lookup),
            max_waiting: self.max_waiting,
            context: self.context,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        model: ModelArgs,
    }

    fn config(flags: &[&str]) -> ModelConfig {
        let flags = Flags::try_parse_from([&["waymark", "--mock"], flags].concat()).unwrap();
        flags.model.resolve(None).unwrap()
    }

    fn pair(size: StepSize) -> (usize, usize) {
        (size.max_batch, size.step_tokens)
    }

    #[test]
    fn a_gpu_takes_larger_steps_than_the_cpu_unless_they_are_requested() {
        let gpu = |config: &ModelConfig| config.gpu_steps().into_iter().map(pair).collect::<Vec<_>>();
        let plain = config(&[]);
        assert_eq!(pair(plain.cpu_step()), (32, 512));
        assert_eq!(gpu(&plain), [(256, 8192), (64, 2048), (32, 512)]);
        let both = config(&["--max-batch", "8", "--step-tokens", "64"]);
        assert_eq!((pair(both.cpu_step()), gpu(&both)), ((8, 64), vec![(8, 64)]));
        let many = config(&["--max-batch", "1000"]);
        assert_eq!((pair(many.cpu_step()), gpu(&many)), ((1000, 1000), vec![(1000, 8192)]));
        let short = config(&["--step-tokens", "16"]);
        assert_eq!((pair(short.cpu_step()), gpu(&short)), ((16, 16), vec![(16, 16)]));
        let limits = plain.steps(plain.gpu_steps()[0], 4096);
        assert_eq!((limits.rows, limits.tokens, limits.context), (256, 8192, 4096));
        let proposing = config(&["--max-batch", "4", "--step-tokens", "16", "--lookup", "24"]);
        let limits = proposing.steps(proposing.gpu_steps()[0], 4096);
        assert!(limits.tokens >= limits.rows, "{limits:?}");
    }
}
