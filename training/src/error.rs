//! What stops training.

use std::path::PathBuf;

use waymark::agent::AgentError;
use waymark::engine::EngineError;
use waymark_index::EmbedError;
use waymark_models::ModelError;

use crate::recipe::RecipeError;
use crate::run::RunError;
use crate::store::StoreError;

/// What stops training. Every cause names its file or field.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The recipe is not right.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The run's directory cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Samples cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The model refuses.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An episode failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// An episode failed twice.
    #[error("{field}: the question {question:?} failed twice: {source}")]
    Rollout {
        /// The questions it is one of.
        field: String,
        /// What was asked.
        question: String,
        /// What was wrong the second time.
        source: Box<AgentError>,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A reward compares texts, and they cannot be embedded.
    #[error("the texts that a reward compares: {0}")]
    Embed(EmbedError),
    /// There is nothing to learn from.
    #[error("{0}")]
    Nothing(String),
    /// A run would go on under something else than it was begun with.
    #[error("{} was begun with `{before}`, now it is `{now}`: take the same, or another --out", dir.display())]
    Changed {
        /// The run.
        dir: PathBuf,
        /// The first line of its facts that differs.
        before: String,
        /// What it would be now.
        now: String,
    },
    /// A loss or a gradient is no number any more.
    #[error("step {step}: the {what} is {value}: lower {section}.learning_rate of the recipe")]
    Diverged {
        /// The part of the recipe that says how it is learnt.
        section: &'static str,
        /// The step.
        step: u64,
        /// What is no number.
        what: &'static str,
        /// What it is.
        value: f64,
    },
}
