//! Recipe of a training run: one TOML file. Its comments name the source of every constant.

pub mod dpo;
mod ranker;
mod read;
mod sections;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use waymark_agent::Policy;
use waymark_models::Arithmetic;
use waymark_models::gradient::{Lora, Precision, Tune};

pub use dpo::Dpo;
pub use ranker::{Labels, Ranker};
pub(crate) use read::replace;
pub use sections::{Grpo, GrpoReference, GrpoStage, Optimizer, Sft, TeacherSettings};

/// Error returned when a recipe cannot be read or is invalid.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        source: std::io::Error,
    },
    /// A field of the file or of an override is invalid.
    #[error("{}: {field}: {reason}", path.display())]
    Field {
        /// Path of the file.
        path: PathBuf,
        /// Name of the field, such as `sft.learning_rate`.
        field: String,
        /// Description of the problem and of valid values.
        reason: String,
    },
    /// The file is not valid TOML.
    #[error("{}: {reason}", path.display())]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem, with its line.
        reason: String,
    },
    /// An override does not have the form `section.field=value`.
    #[error("--set {text}: {reason}")]
    Override {
        /// Text of the override.
        text: String,
        /// Description of the problem.
        reason: &'static str,
    },
}

/// Settings of a training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name of the resulting policy.
    pub name: String,
    /// Base model: a catalog name, a path or a hub ID.
    pub base: String,
    /// ID of the base model on the model hub, by which PEFT finds it. `None` uses `base`.
    pub hub: Option<String>,
    /// Seed of all random choices but the initial values of an adapter, which have a seed of their own.
    pub seed: u64,
    /// Policy settings as in `policy.toml`: protocol, retrieval, budget, and sampling parameters for serving.
    pub policy: toml::Table,
    /// LoRA adapter to train. `None` trains all weights.
    pub adapter: Option<Lora>,
    /// Precision of the adapter in the resulting policy. Training itself uses `f32`.
    #[serde(default)]
    pub precision: Precision,
    /// Arithmetic of matrix multiplications with the frozen base model, in the learner and in the engine that plays
    /// rollouts. `bf16` takes half the time on CPUs with AVX512-BF16. Independent of `precision`. Serialized only if
    /// it is not `f32`, so that runs started before this field existed can resume.
    #[serde(default, skip_serializing_if = "is_plain")]
    pub arithmetic: Arithmetic,
    /// Optimizer settings.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Supervised training on given trajectories.
    pub sft: Option<Sft>,
    /// Training on rewards.
    pub grpo: Option<Grpo>,
    /// Training on preferences. Omitted from the serialized recipe if `None`, so that runs started before this field
    /// existed can resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dpo: Option<Dpo>,
}

impl Recipe {
    /// Parameters to train: the adapter, or all weights.
    pub fn tune(&self) -> Tune {
        self.adapter.clone().map_or(Tune::Full, Tune::Lora)
    }

    /// Builds the contents of `policy.toml` without the record of training.
    pub fn policy_table(&self) -> toml::Table {
        let mut table = toml::Table::new();
        table.insert("name".into(), self.name.clone().into());
        table.insert("base".into(), self.base.clone().into());
        table.extend(self.policy.clone());
        table
    }

    /// Builds the policy to train, without an adapter.
    ///
    /// # Errors
    /// The error of [`Policy::parse`] if `[policy]` is invalid.
    pub fn policy(&self) -> Result<Policy, waymark_agent::AgentError> {
        let text = self.policy_table().to_string();
        Policy::parse(&text, std::path::Path::new("recipe, [policy]"))
    }
}

fn is_plain(arithmetic: &Arithmetic) -> bool {
    *arithmetic == Arithmetic::default()
}
