//! Description of an experiment, as TOML.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use waymark_index::Mode;
use waymark_models::Arithmetic;

use super::check;
use super::endpoint::Metric;
use super::error::ExperimentError;
use crate::recipe::replace;
use crate::run::RunError;

/// Maximum size of a description, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Description of an experiment. Paths are relative to the working directory, as on the command line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name, which is also the default name of its directory.
    pub name: String,
    /// Claim that the experiment tests, in words.
    pub claim: String,
    /// Seeds of the trained arms.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// Embedding model that the indexes were built with, as `--embedder` takes it. `None` takes the one that each
    /// command's first index names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedder: Option<String>,
    /// Base model of arms with a fixed policy. `None` takes the policy's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Arithmetic of evaluations, as `train eval --arithmetic` takes it. `None` takes that of the stages' recipes if all
    /// of them have the same other than `f32`, and otherwise leaves the choice to `train eval`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<Arithmetic>,
    /// Questions that stages train on.
    #[serde(default)]
    pub training: Vec<TrainingSet>,
    /// Questions that arms are evaluated on.
    #[serde(default)]
    pub evaluation: Vec<EvaluationSet>,
    /// Trainings. Each may begin from an earlier one; those that several arms need run once.
    #[serde(default)]
    pub stage: Vec<Stage>,
    /// Arms to compare.
    #[serde(default)]
    pub arm: Vec<Arm>,
    /// Comparisons that decide about the claim. The claim holds if all of them pass.
    #[serde(default)]
    pub endpoint: Vec<Endpoint>,
}

/// Training questions with their index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingSet {
    /// Path to the questions.
    pub questions: PathBuf,
    /// Directory of the index.
    pub index: PathBuf,
    /// Path to the validation questions, on which the best step is chosen. `None` sets the last training questions
    /// aside, as the recipe says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<PathBuf>,
}

/// Evaluation questions with their index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationSet {
    /// Name of the set: that of the file, or of its folder if the file is called `questions.jsonl`.
    pub name: String,
    /// Path to the questions.
    pub questions: PathBuf,
    /// Directory of the index.
    pub index: PathBuf,
}

/// A training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Name.
    pub name: String,
    /// Command of the trainer.
    pub kind: StageKind,
    /// Path to the recipe.
    pub recipe: PathBuf,
    /// Overrides of the recipe's fields, as `--set` takes them.
    #[serde(default)]
    pub set: Vec<String>,
    /// Name of the earlier stage to start from. `None` starts from `policy`, or else from the base model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// Directory of the policy to start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PathBuf>,
    /// Name of the earlier stage that the KL divergence is measured from; for `grpo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Number of the recipe's stage to train, from 1; for `grpo`. `None` trains all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<usize>,
    /// Paths to trajectories; for `sft`.
    #[serde(default)]
    pub data: Vec<PathBuf>,
    /// Seed for which the stage is trained once, whatever the experiment's seeds. `None` trains it for each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Stage {
    /// Returns the position in `set` of an override of this field.
    pub(super) fn override_of(&self, field: &str) -> Option<usize> {
        self.set.iter().position(|text| text.split('=').next().is_some_and(|name| name.trim() == field))
    }

    /// Returns `true` if an override gives the adapter's seed, as a field or within a table.
    pub(super) fn overrides_adapter_seed(&self) -> bool {
        let mut table = Table::new();
        let valid = self.set.iter().try_for_each(|text| replace(&mut table, text)).is_ok();
        let adapter = table.get("adapter").and_then(Value::as_table);
        valid && adapter.is_some_and(|adapter| adapter.contains_key("seed"))
    }
}

/// Command of the trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageKind {
    /// Supervised training on trajectories.
    Sft,
    /// Training on rewards.
    Grpo,
    /// Training on preferences.
    Dpo,
}

impl StageKind {
    /// Returns the name of the command.
    pub fn command(self) -> &'static str {
        match self {
            StageKind::Sft => "sft",
            StageKind::Grpo => "grpo",
            StageKind::Dpo => "dpo",
        }
    }
}

/// Arm of an experiment: the policy of a stage, or a fixed policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Name.
    pub name: String,
    /// Name of the stage whose policy is evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Fixed policy: a directory, a protocol or a baseline, as `train eval --policy` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Mode forced on every search. `None` leaves it to the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Number of passages forced on every search. `None` leaves it to the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<usize>,
}

/// Comparison of two arms that decides about the claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Metric that is compared.
    pub metric: Metric,
    /// Name of the arm that is claimed to be better.
    pub arm: String,
    /// Name of the arm it is compared with.
    pub against: String,
    /// Names of the evaluation sets, which count alike. Empty takes all.
    #[serde(default)]
    pub sets: Vec<String>,
    /// Bar from below: the difference must be at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// Bar from above: the difference must be at most this, for metrics where less is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// If `true`, the whole 95 % interval of the difference must pass the bar, not only its mean.
    #[serde(default)]
    pub interval: bool,
}

impl Experiment {
    /// Reads and checks a description.
    ///
    /// # Errors
    /// [`ExperimentError`] with the file, the field and the valid values.
    pub fn open(path: &Path) -> Result<Experiment, ExperimentError> {
        let size = fs::metadata(path).map_err(RunError::io("read", path))?.len();
        if size > MAX_BYTES {
            let reason = format!("{size} bytes are more than the {MAX_BYTES} of a description");
            return Err(ExperimentError::Syntax { path: path.to_owned(), reason });
        }
        let text = fs::read_to_string(path).map_err(RunError::io("read", path))?;
        Experiment::parse(&text, path)
    }

    /// Parses and checks the text of a description. `path` appears in error messages.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    pub fn parse(text: &str, path: &Path) -> Result<Experiment, ExperimentError> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| ExperimentError::Syntax {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        // `serde_path_to_error` adds the path of the invalid field to the message.
        let experiment: Experiment = serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| {
            let field = error.path().to_string();
            let reason = error.inner().to_string().trim().to_owned();
            ExperimentError::Field { path: path.to_owned(), field, reason }
        })?;
        match check::flaw(&experiment) {
            None => Ok(experiment),
            Some((field, reason)) => Err(ExperimentError::Field { path: path.to_owned(), field, reason }),
        }
    }

    /// Returns the stage with this name.
    pub fn stage(&self, name: &str) -> Option<&Stage> {
        self.stage.iter().find(|stage| stage.name == name)
    }

    /// Returns the names of the evaluation sets of an endpoint.
    pub fn sets_of<'a>(&'a self, endpoint: &'a Endpoint) -> Vec<&'a str> {
        if endpoint.sets.is_empty() {
            return self.evaluation.iter().map(|set| set.name.as_str()).collect();
        }
        endpoint.sets.iter().map(String::as_str).collect()
    }

    /// Returns the seeds with which an arm is evaluated. `None` stands for a policy that depends on no seed.
    pub fn seeds_of(&self, arm: &Arm) -> Vec<Option<u64>> {
        match arm.stage.as_ref().and_then(|name| self.stage(name)) {
            Some(stage) if stage.seed.is_none() => self.seeds.iter().copied().map(Some).collect(),
            _ => vec![None],
        }
    }
}

fn one_seed() -> Vec<u64> {
    vec![1]
}
