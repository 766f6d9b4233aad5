//! Facts that identify a run or another output of a command. A command resumes an output only if its facts are
//! unchanged.

use std::path::PathBuf;

use toml::{Table, Value};
use waymark_engine::Engine;
use waymark_models::gradient::Learner;

use crate::policy_writer;
use crate::recipe::Recipe;

/// Facts that identify a run, as TOML. A run resumes only if they are all unchanged.
pub(super) fn to_toml(command: &str, recipe: &Recipe, more: &[(&str, Value)]) -> anyhow::Result<String> {
    Ok(toml::to_string_pretty(&table(command, recipe, more)?)?)
}

/// Facts that identify the output of `command`: the command itself, `more`, and the whole recipe.
pub(super) fn table(command: &str, recipe: &Recipe, more: &[(&str, Value)]) -> anyhow::Result<Table> {
    let mut table = Table::new();
    table.insert("command".into(), command.into());
    table.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    table.insert("recipe".into(), Value::try_from(recipe)?);
    Ok(table)
}

/// Fact for [`to_toml`] that a GPU trains. A GPU rounds differently from the CPU, so a run must not resume on the other
/// device.
pub(super) fn training_device(learner: &Learner) -> Option<(&'static str, Value)> {
    // The value stays "card" because it is stored in the facts of existing runs.
    learner.on_gpu().then(|| ("device", "card".into()))
}

/// Fact for [`to_toml`] that a GPU generates the rollouts, for the same reason as [`training_device`].
pub(super) fn rollout_device(engine: &Engine) -> Option<(&'static str, Value)> {
    engine.overlaps().then(|| ("rollout_device", "card".into()))
}

/// Pairs of file name and content hash.
pub(super) fn fingerprints(files: &[PathBuf]) -> anyhow::Result<Vec<(String, String)>> {
    Ok(files.iter().map(|file| policy_writer::fingerprint(file)).collect::<Result<_, _>>()?)
}

/// Array of `name hash` strings, for [`to_toml`].
pub(super) fn hash_list(files: &[(String, String)]) -> Value {
    Value::Array(files.iter().map(|(name, hash)| format!("{name} {hash}").into()).collect())
}
