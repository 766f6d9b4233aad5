//! Errors of a training run.

use std::path::PathBuf;

use waymark_agent::AgentError;
use waymark_engine::EngineError;
use waymark_index::EmbedError;
use waymark_models::ModelError;

use crate::recipe::RecipeError;
use crate::run::RunError;
use crate::sample_lines::SampleLinesError;

/// Error that stops training. Each variant names its file or field.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The recipe is invalid.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The directory of the run cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Samples cannot be read or written.
    #[error(transparent)]
    Samples(#[from] SampleLinesError),
    /// A model cannot be loaded or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Playing an episode failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// An episode failed twice.
    #[error("{question_set}: the question {question:?} failed twice: {source}")]
    Rollout {
        /// Name of the question set.
        question_set: String,
        /// Text of the question.
        question: String,
        /// Error of the second attempt.
        source: Box<AgentError>,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Texts that a reward compares cannot be embedded.
    #[error("cannot embed the texts that a reward compares: {0}")]
    Embed(EmbedError),
    /// No training data is left, or another input makes training impossible.
    #[error("{0}")]
    Nothing(String),
    /// The fingerprint of a policy cannot be computed or written. The policy itself has been written.
    #[error("{}: the policy has no fingerprint: {reason}", dir.display())]
    Fingerprint {
        /// Directory of the policy.
        dir: PathBuf,
        /// Reason.
        reason: String,
    },
    /// A run would resume with other settings than it was started with.
    #[error("{} was started with `{before}`, but now it is `{now}`: use the same settings or another --out", dir.display())]
    Changed {
        /// Directory of the run.
        dir: PathBuf,
        /// First line of `run.toml` that differs, as stored.
        before: String,
        /// Same line with the current settings.
        now: String,
    },
    /// A loss or a gradient is not finite.
    #[error("step {step}: the {what} is {value}: lower {section}.learning_rate in the recipe")]
    Diverged {
        /// Section of the recipe whose learning rate is too high.
        section: &'static str,
        /// Step.
        step: u64,
        /// Name of the quantity, such as `loss`.
        what: &'static str,
        /// Its value.
        value: f64,
    },
}
