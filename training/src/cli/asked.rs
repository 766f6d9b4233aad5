//! What a training command is asked to do: a recipe and what overrides it.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use toml::{Table, Value};
use waymark::agent::Policy;
use waymark::engine::Engine;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::gradient::Learner;

use super::machine::Base;
use crate::hash;
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
    Ok(toml::to_string_pretty(&table(command, recipe, more)?)?)
}

/// What anything is known by that a command makes by a recipe.
pub(super) fn table(command: &str, recipe: &Recipe, more: &[(&str, Value)]) -> anyhow::Result<Table> {
    let mut table = Table::new();
    table.insert("command".into(), command.into());
    table.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    table.insert("recipe".into(), Value::try_from(recipe)?);
    Ok(table)
}

/// That a card learns, for [`facts`]: it rounds otherwise than a processor, so that no run goes on on the other.
pub(super) fn device(learner: &Learner) -> Option<(&'static str, Value)> {
    learner.on_card().then(|| ("device", "card".into()))
}

/// That a card makes the rollouts, for [`facts`]: likewise.
pub(super) fn rolled(engine: &Engine) -> Option<(&'static str, Value)> {
    engine.overlaps().then(|| ("rollout_device", "card".into()))
}

/// The hashes of files.
pub(super) fn fingerprints(files: &[PathBuf]) -> anyhow::Result<Vec<(String, String)>> {
    Ok(files.iter().map(|file| product::fingerprint(file)).collect::<Result<_, _>>()?)
}

/// Files with their hashes, for [`facts`].
pub(super) fn hashes(files: &[(String, String)]) -> Value {
    Value::Array(files.iter().map(|(name, hash)| format!("{name} {hash}").into()).collect())
}

/// Sets `learner` to the policy or run at `dir`, which `flag` named. Returns the record of its training and the hash of what
/// was learnt.
pub(super) fn take(
    flag: &str,
    dir: &Path,
    recipe: &Recipe,
    base: &Base,
    learner: &mut Learner,
) -> anyhow::Result<(Option<Table>, String)> {
    let named = || format!("{flag} {}", dir.display());
    let (dir, policy) = policy(flag, dir, recipe)?;
    let values = match recipe.adapter {
        Some(_) => take_adapter(&policy, recipe, base, learner),
        None => take_weights(&dir, &policy, base, learner),
    };
    let (_, hash) = product::fingerprint(&values.with_context(named)?)?;
    Ok((policy.training, hash))
}

/// The policy of the policy or run at `dir`, which `flag` named, and its directory. It speaks the recipe's protocol.
pub(super) fn policy(flag: &str, dir: &Path, recipe: &Recipe) -> anyhow::Result<(PathBuf, Policy)> {
    let named = || format!("{flag} {}", dir.display());
    let own = product::policy_dir(dir);
    let policy = Policy::open(&own).with_context(named)?;
    let (spoken, wanted) = (policy.protocol.name(), recipe.policy()?.protocol.name());
    ensure!(spoken == wanted, "{}: its protocol is {spoken}, the recipe has {wanted}", named());
    Ok((own, policy))
}

/// The adapter of a policy, if it belongs to the recipe's base model, which calls itself `base`, and its content `id`.
pub(super) fn adapter<'a>(policy: &'a Policy, recipe: &Recipe, base: &str, id: &str) -> anyhow::Result<&'a PathBuf> {
    if let Some(other) = &policy.base_id {
        let own = &recipe.base;
        ensure!(other == id, "it belongs to a base model with the id {other}, the recipe has {own} with the id {id}");
    } else if let Some(other) = &policy.base {
        let same = *other == recipe.base || other == base;
        ensure!(same, "it belongs to the base model {other}, the recipe has {}", recipe.base);
    }
    policy.adapter_dir.as_ref().context("it has no adapter")
}

/// Takes over a policy's adapter. Returns the file it is in.
fn take_adapter(policy: &Policy, recipe: &Recipe, base: &Base, learner: &mut Learner) -> anyhow::Result<PathBuf> {
    let adapter = adapter(policy, recipe, &base.name, &base.id)?;
    learner.load_adapter(adapter)?;
    Ok(adapter.join("adapter_model.safetensors"))
}

/// The checkpoint of the policy in `dir`, all of whose weights were learnt.
pub(super) fn weights(dir: &Path, policy: &Policy) -> anyhow::Result<PathBuf> {
    let model = product::model_dir(dir);
    let whole = policy.adapter_dir.is_none() && model.is_dir();
    ensure!(whole, "it has an adapter or nothing, while the recipe learns all weights: give the recipe its [adapter]");
    Ok(model)
}

/// Refuses weights whose tokens are not those of the recipe's base model, which calls itself `base`.
pub(super) fn same_vocabulary(learnt: &Checkpoint, vocabulary: &str, base: &str) -> anyhow::Result<()> {
    let same = hash::vocabulary(&learnt.tokenizer) == vocabulary;
    ensure!(same, "its vocabulary is not that of the recipe's base model {base}");
    Ok(())
}

/// Takes over all weights of the policy in `dir`. Returns the file they are in.
fn take_weights(dir: &Path, policy: &Policy, base: &Base, learner: &mut Learner) -> anyhow::Result<PathBuf> {
    let model = weights(dir, policy)?;
    let learnt = Checkpoint::open(&model)?;
    same_vocabulary(&learnt, &base.vocabulary, &base.name)?;
    learner.load_weights(&learnt.weights)?;
    Ok(model.join("model.safetensors"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tiny;

    #[test]
    fn an_adapter_goes_by_the_weights_it_was_learnt_over_and_else_by_their_name() {
        let recipe = tiny::recipe(Path::new("here"));
        let taken = |base: &str, id: &str| {
            let text = format!("name = \"a\"\nprotocol = \"routerag\"\nbase = {base:?}\n{id}\n");
            let policy = Policy::parse(&text, Path::new("policy.toml")).unwrap();
            let policy = Policy { adapter_dir: Some("adapter".into()), ..policy };
            adapter(&policy, &recipe, "tiny", "00ff").cloned().map_err(|error| error.to_string())
        };
        for (base, id) in [("here", ""), ("tiny", ""), ("moved", "base_id = \"00ff\"")] {
            assert_eq!(taken(base, id), Ok("adapter".into()), "{base} {id}");
        }
        for (base, id) in [("moved", ""), ("here", "base_id = \"ff00\"")] {
            assert!(taken(base, id).unwrap_err().contains("the recipe has here"), "{base} {id}");
        }
    }
}
