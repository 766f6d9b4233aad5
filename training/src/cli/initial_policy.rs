//! Policy that a command starts from, as named by `--init` or `--reference`.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use toml::Table;
use waymark_agent::Policy;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::gradient::Learner;

use super::compute_args::BaseIdentity;
use crate::hash;
use crate::policy_writer;
use crate::recipe::Recipe;

/// Provenance of the values that a command starts from. The default is that of the base model.
#[derive(Debug, Default)]
pub(super) struct InitialPolicy {
    /// Record of the training of the policy. `None` if the policy has none.
    pub(super) record: Option<Table>,
    /// Hash of the values. Empty for the base model.
    pub(super) hash: String,
}

/// Loads the values of the policy or run at `dir` into `learner`. `flag` is the option that named `dir`, for error
/// messages.
pub(super) fn load(
    flag: &str,
    dir: &Path,
    recipe: &Recipe,
    base: &BaseIdentity,
    learner: &mut Learner,
) -> anyhow::Result<InitialPolicy> {
    let (own, policy) = open(flag, dir, recipe)?;
    load_values(flag, dir, &own, policy, recipe, base, learner)
}

/// Same as [`load`], but accepts a policy with another protocol, because supervised training teaches the recipe's
/// protocol.
pub(super) fn load_for_lessons(
    flag: &str,
    dir: &Path,
    recipe: &Recipe,
    base: &BaseIdentity,
    learner: &mut Learner,
) -> anyhow::Result<InitialPolicy> {
    let own = policy_writer::policy_dir(dir);
    let policy = Policy::open(&own).with_context(|| format!("{flag} {}", dir.display()))?;
    load_values(flag, dir, &own, policy, recipe, base, learner)
}

/// Loads the values of `policy` in the directory `own`, which the option `flag` named as `dir`.
fn load_values(
    flag: &str,
    dir: &Path,
    own: &Path,
    policy: Policy,
    recipe: &Recipe,
    base: &BaseIdentity,
    learner: &mut Learner,
) -> anyhow::Result<InitialPolicy> {
    let named = || format!("{flag} {}", dir.display());
    let values = match recipe.adapter {
        Some(_) => load_adapter(&policy, recipe, base, learner),
        None => load_weights(own, &policy, base, learner),
    };
    let (_, hash) = policy_writer::fingerprint(&values.with_context(named)?)?;
    Ok(InitialPolicy { record: policy.training, hash })
}

/// Opens the policy or run at `dir`, which the option `flag` named. Returns the policy directory and the policy. Fails
/// if the policy uses another protocol than the recipe.
pub(super) fn open(flag: &str, dir: &Path, recipe: &Recipe) -> anyhow::Result<(PathBuf, Policy)> {
    let named = || format!("{flag} {}", dir.display());
    let own = policy_writer::policy_dir(dir);
    let policy = Policy::open(&own).with_context(named)?;
    let spoken = policy.protocol.name();
    let wanted = recipe.policy()?.protocol.name();
    // Tags of another protocol would be plain text to this one, and every turn invalid.
    ensure!(spoken == wanted, "{}: the protocol of the policy is {spoken}, but the recipe has {wanted}", named());
    Ok((own, policy))
}

/// Adapter directory of a policy. Fails unless the adapter belongs to the recipe's base model, whose name is `base` and
/// whose content ID is `id`.
pub(super) fn adapter_dir<'a>(
    policy: &'a Policy,
    recipe: &Recipe,
    base: &str,
    id: &str,
) -> anyhow::Result<&'a PathBuf> {
    // The content ID identifies the base model even if it was moved or renamed; older policies only have a name.
    if let Some(other) = &policy.base_id {
        let own = &recipe.base;
        ensure!(
            other == id,
            "the adapter belongs to the base model with ID {other}, but the recipe has {own} with ID {id}"
        );
    } else if let Some(other) = &policy.base {
        let same = *other == recipe.base || other == base;
        ensure!(same, "the adapter belongs to the base model {other}, but the recipe has {}", recipe.base);
    }
    policy.adapter_dir.as_ref().context("the policy has no adapter, but the recipe has an [adapter] section")
}

/// Loads the adapter of `policy` into `learner`. Returns the file of its weights.
fn load_adapter(
    policy: &Policy,
    recipe: &Recipe,
    base: &BaseIdentity,
    learner: &mut Learner,
) -> anyhow::Result<PathBuf> {
    let adapter = adapter_dir(policy, recipe, &base.name, &base.id)?;
    learner.load_adapter(adapter)?;
    Ok(adapter.join("adapter_model.safetensors"))
}

/// Checkpoint directory of the policy in `dir`. Fails if the policy was not trained on all weights.
pub(super) fn weights_dir(dir: &Path, policy: &Policy) -> anyhow::Result<PathBuf> {
    let model = policy_writer::model_dir(dir);
    let whole = policy.adapter_dir.is_none() && model.is_dir();
    ensure!(
        whole,
        "the policy has no full set of weights, but the recipe learns all weights: add an [adapter] section to the recipe"
    );
    Ok(model)
}

/// Fails unless the vocabulary of the checkpoint `trained` has the hash `vocabulary`, that of the recipe's base model
/// `base`.
pub(super) fn check_vocabulary(trained: &Checkpoint, vocabulary: &str, base: &str) -> anyhow::Result<()> {
    let same = hash::vocabulary(&trained.tokenizer) == vocabulary;
    ensure!(same, "the vocabulary differs from that of the recipe's base model {base}");
    Ok(())
}

/// Loads all weights of the policy in `dir` into `learner`. Returns the file of the weights.
fn load_weights(dir: &Path, policy: &Policy, base: &BaseIdentity, learner: &mut Learner) -> anyhow::Result<PathBuf> {
    let model = weights_dir(dir, policy)?;
    let trained = Checkpoint::open(&model)?;
    check_vocabulary(&trained, &base.vocabulary, &base.name)?;
    learner.load_weights(&trained.weights)?;
    Ok(model.join("model.safetensors"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tiny;

    #[test]
    fn an_adapter_is_matched_by_base_id_or_else_by_base_name() {
        let recipe = tiny::recipe(Path::new("here"));
        let taken = |base: &str, id: &str| {
            let text = format!("name = \"a\"\nprotocol = \"routerag\"\nbase = {base:?}\n{id}\n");
            let policy = Policy::parse(&text, Path::new("policy.toml")).unwrap();
            let policy = Policy { adapter_dir: Some("adapter".into()), ..policy };
            adapter_dir(&policy, &recipe, "tiny", "00ff").cloned().map_err(|error| error.to_string())
        };
        for (base, id) in [("here", ""), ("tiny", ""), ("moved", "base_id = \"00ff\"")] {
            assert_eq!(taken(base, id), Ok("adapter".into()), "{base} {id}");
        }
        for (base, id) in [("moved", ""), ("here", "base_id = \"ff00\"")] {
            assert!(taken(base, id).unwrap_err().contains("the recipe has here"), "{base} {id}");
        }
    }
}
