//! A recipe: everything a policy is trained by, as one TOML file whose comments name the source of every constant.

pub mod dpo;
mod part;
mod ranker;
mod read;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use waymark::agent::Policy;
use waymark_models::Arithmetic;
use waymark_models::gradient::{Lora, Precision, Tune};

pub use dpo::Dpo;
pub use part::{Grpo, Optimizer, Reference, Sft, Stage, Teacher};
pub use ranker::{Labels, Ranker};

/// What can be wrong with a recipe.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Something in it, or in what overrides it, is not as it must be.
    #[error("{}: {field}: {reason}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field, such as `sft.learning_rate`.
        field: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// It is not TOML.
    #[error("{}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        reason: String,
    },
    /// An override is not `section.field=value`.
    #[error("--set {text}: {reason}")]
    Override {
        /// What was typed.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Everything a policy is trained by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// What the policy will be called.
    pub name: String,
    /// The base model: a name in the catalog, a path or a hub id.
    pub base: String,
    /// The base model's id on the model hub, by which PEFT finds it; `base`, where none is named.
    pub hub: Option<String>,
    /// Where everything random starts.
    pub seed: u64,
    /// The loop that is learnt, as `policy.toml` has it: protocol, retrieval, budget, and how the policy samples when it
    /// is served.
    pub policy: toml::Table,
    /// The adapter that is learnt; without it, every weight is.
    pub adapter: Option<Lora>,
    /// What the adapter's values are rounded to in the policy that comes out; they are learnt in `f32`.
    #[serde(default)]
    pub precision: Precision,
    /// What products with the frozen base are computed in, by the learner and by the engine that rolls out; in `bf16` they
    /// take half the time where the processor has AVX512-BF16. It has nothing to do with `precision`. Written only where
    /// it is not `f32`, so that runs from before it go on.
    #[serde(default, skip_serializing_if = "is_plain")]
    pub arithmetic: Arithmetic,
    /// How gradients become steps.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Learning from given trajectories.
    pub sft: Option<Sft>,
    /// Learning from rewards.
    pub grpo: Option<Grpo>,
    /// Learning from preferences. Not written where there is none, so that runs from before it go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dpo: Option<Dpo>,
}

impl Recipe {
    /// What of the base model is learnt.
    pub fn tune(&self) -> Tune {
        self.adapter.clone().map_or(Tune::Full, Tune::Lora)
    }

    /// The text of the policy's file, without the record of its training.
    pub fn policy_table(&self) -> toml::Table {
        let mut table = toml::Table::new();
        table.insert("name".into(), self.name.clone().into());
        table.insert("base".into(), self.base.clone().into());
        table.extend(self.policy.clone());
        table
    }

    /// The policy that is trained, without an adapter.
    ///
    /// # Errors
    /// What [`Policy::parse`] finds wrong with `[policy]`.
    pub fn policy(&self) -> Result<Policy, waymark::agent::AgentError> {
        let text = self.policy_table().to_string();
        Policy::parse(&text, std::path::Path::new("recipe, [policy]"))
    }
}

fn is_plain(arithmetic: &Arithmetic) -> bool {
    *arithmetic == Arithmetic::default()
}
