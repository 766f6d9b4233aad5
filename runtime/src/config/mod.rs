//! Configuration of models, retrieval and the log, in two steps: flags (`…Args`) and their meaning (`…Config`). One
//! file per group of flags.

mod base_model;
mod device;
mod embedder;
mod filter;
mod fleet;
mod log;
mod model;
mod reranker;
mod retrieval;
mod size;

pub use base_model::{DEFAULT_MODEL, base_model};
pub use device::{Device, DeviceArgs, DeviceConfig, GpuKvSize, StepArgs};
pub use embedder::{DEFAULT_EMBEDDER, EmbedderArgs, EmbedderConfig, QueryArithmetic};
pub use filter::{FactFilterArgs, FactFilterConfig};
pub use fleet::{EngineAddress, EngineAddressError, EngineKind, FleetArgs, FleetConfig, FleetTimeouts};
pub use log::LogFormat;
pub use model::{ModelArgs, ModelConfig, StepSize};
pub use reranker::{RerankerArgs, RerankerConfig};
pub use retrieval::{IndexPlace, RetrievalArgs, RetrievalConfig, local_index};
pub use size::{Size, seconds};

/// Error returned for a combination of flags that contradicts itself.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A number that must not be zero is zero.
    #[error("--{0} must be at least 1")]
    Zero(&'static str),
    /// A step holds fewer tokens than sequences that decode in it.
    #[error("--step-tokens {step_tokens} is smaller than --max-batch {max_batch}: raise one or lower the other")]
    StepTooSmall {
        /// Value of `--step-tokens`.
        step_tokens: usize,
        /// Value of `--max-batch`.
        max_batch: usize,
    },
    /// A flag for endpoints is given with an embedder on this machine.
    #[error(
        "--embedder-model is the name at an endpoint: --embedder {embedder:?} is none, expected a URL such as http://host:8080/v1"
    )]
    EmbedderModel {
        /// Value of `--embedder`.
        embedder: String,
    },
    /// The model of an embedding endpoint is not named.
    #[error("--embedder {url}: name the model there by --embedder-model: an index keeps this name")]
    EmbedderWithoutModel {
        /// Value of `--embedder`.
        url: String,
    },
    /// A query arithmetic is given for an embedder that is not a local encoder.
    #[error(
        "--query-arithmetic is for a local encoder, and the embedder {embedder:?} is not one: leave it out, or name an encoder by --embedder"
    )]
    QueryArithmetic {
        /// Value of `--embedder`.
        embedder: String,
    },
    /// A flag for endpoints is given with a reranker on this machine.
    #[error(
        "--reranker-model is the name at an endpoint: --reranker {reranker:?} is none, expected a URL such as http://host:8080/v1/rerank"
    )]
    RerankerModel {
        /// Value of `--reranker`.
        reranker: String,
    },
    /// Two indexes have the same name.
    #[error("--index: two indexes have the name `{0}`; the default index answers to `default` as well")]
    IndexName(String),
    /// Two indexes have no name.
    #[error("--index {}: only one index can be without a name: give `NAME=DIR`", .0.display())]
    IndexWithoutName(std::path::PathBuf),
    /// An arithmetic or a precision is given for the mock, which computes nothing.
    #[error("--mock does not take --arithmetic or --kv: it computes nothing")]
    MockWithArithmetic,
    /// The duration of the mock's steps is given without the mock.
    #[error("--mock-step-ms {0} is the pace of the mock: add --mock, or leave it out")]
    StepWithoutMock(u64),
    /// The policy that decides on the base model cannot be read.
    #[error(transparent)]
    Policy(#[from] waymark_agent::AgentError),
    /// A policy has neither weights nor the name of a base model.
    #[error("the policy {policy} names no base model: set `base` in its policy.toml, or --model")]
    NoBase {
        /// Name of the policy.
        policy: String,
    },
    /// The base model of a policy cannot be found.
    #[error(
        "the policy {policy} belongs to the base model {base:?}, which is neither in the catalog, nor a path, nor a hub ID: set \
         --model to it"
    )]
    BaseNotFound {
        /// Name of the policy.
        policy: String,
        /// Base model as the policy names it.
        base: String,
    },
}

/// Number of threads that this process can run at once.
pub fn cores() -> usize {
    // Honors CPU affinity and cgroup quotas, unlike the number of processors.
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns `threads`, or the number of cores for 0.
pub fn or_cores(threads: usize) -> usize {
    if threads == 0 { cores() } else { threads }
}

/// Refuses zeros among `numbers`, pairs of a flag's name and its value.
///
/// # Errors
/// [`ConfigError::Zero`] with the name of the first flag that is zero.
pub fn at_least_one(numbers: &[(&'static str, usize)]) -> Result<(), ConfigError> {
    match numbers.iter().find(|(_, number)| *number == 0) {
        Some((name, _)) => Err(ConfigError::Zero(name)),
        None => Ok(()),
    }
}
