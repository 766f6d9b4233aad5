//! What a training command is asked to do: a recipe and what overrides it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use toml::{Table, Value};
use waymark::agent::Policy;

use crate::product;
use crate::recipe::Recipe;

/// A recipe and what overrides it.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Asked {
    /// The recipe: everything the policy is trained by, one TOML file.
    #[arg(long, value_name = "FILE")]
    pub(super) recipe: PathBuf,

    /// Override a field of the recipe, such as `sft.epochs=3`; may be given several times.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    set: Vec<String>,

    /// Print what would be done, how long it would take and how much memory, and do nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
}

impl Asked {
    /// The recipe with what overrides it.
    pub(super) fn open(&self) -> anyhow::Result<Recipe> {
        Ok(Recipe::open(&self.recipe, &self.set)?)
    }
}

/// What a run is known by: it goes on only if all of it is the same.
pub(super) fn facts(command: &str, recipe: &Recipe, more: &[(&str, Value)]) -> anyhow::Result<String> {
    let mut table = Table::new();
    table.insert("command".into(), command.into());
    table.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    table.insert("recipe".into(), Value::try_from(recipe)?);
    Ok(toml::to_string_pretty(&table)?)
}

/// Files with their hashes, for [`facts`].
pub(super) fn hashes(files: &[(String, String)]) -> Value {
    Value::Array(files.iter().map(|(name, hash)| format!("{name} {hash}").into()).collect())
}

/// How the policy or run at `init` was trained, and the hash of its adapter.
pub(super) fn before(init: &Path) -> anyhow::Result<(Option<Table>, String)> {
    let dir = product::policy_dir(init);
    let policy = Policy::open(&dir).with_context(|| format!("--init {}", init.display()))?;
    let adapter = policy.adapter_dir.with_context(|| format!("--init {}: it has no adapter", init.display()))?;
    let (_, hash) = product::fingerprint(&adapter.join("adapter_model.safetensors"))?;
    Ok((policy.training, hash))
}
