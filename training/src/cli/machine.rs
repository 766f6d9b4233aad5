//! What a command computes with.

use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "cuda")]
use anyhow::Context;
use anyhow::ensure;
use waymark::cli::assembly;
use waymark::config::{Device, Size, cores};
use waymark_models::checkpoint::Checkpoint;
use waymark_models::gradient::{Learner, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

use crate::hash;
use crate::product;
use crate::recipe::Recipe;

/// What a command computes with. None of it changes a result, but for a card's rounding.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Machine {
    /// What learns: `cpu`, or `cuda` or `cuda:N` for NVIDIA card N, which learns adapters, with the base model in bf16
    /// whatever the recipe's arithmetic. A card's numbers are others, so it has to be named: `auto` is the processor.
    #[arg(long, env = "WAYMARK_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    device: Device,

    /// Threads that compute; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    pub(super) threads: usize,

    /// Memory that a pass may take, such as `6GiB`: layers whose activations do not fit are computed again in the
    /// backward pass. Without it all are kept. On a card, where all are computed again, memory of the card.
    #[arg(long, env = "WAYMARK_TRAIN_MEMORY", value_name = "SIZE")]
    memory: Option<Size>,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    pub(super) cache: Option<PathBuf>,
}

impl Machine {
    /// Whether it learns on the card that `other` names.
    pub(super) fn is_also(&self, other: Device) -> bool {
        matches!((self.device, other), (Device::Cuda(0), Device::Auto))
            || self.device == other && self.device != Device::Cpu
    }

    /// Its threads.
    pub(super) fn team(&self) -> Arc<Team> {
        Arc::new(Team::new(if self.threads == 0 { cores() } else { self.threads }))
    }

    /// The recipe's base model with what is learnt of it.
    pub(super) fn learner(&self, recipe: &Recipe, team: Arc<Team>) -> anyhow::Result<(Learner, Base)> {
        compiled(self.device)?;
        let (checkpoint, path) = assembly::checkpoint(&recipe.base, self.cache.clone())?;
        let flaw = product::flaw(&path).filter(|_| recipe.adapter.is_none());
        ensure!(flaw.is_none(), flaw.unwrap_or_default());
        let (weights, tune) = (&checkpoint.weights, recipe.tune());
        let mut learner = match self.device {
            Device::Cuda(ordinal) => on_card(weights, ordinal, &tune)?,
            Device::Cpu | Device::Auto => Learner::load_with(weights, team, &tune, recipe.arithmetic)?,
        };
        learner.set_limit(self.memory.map(|size| size.0));
        let Checkpoint { name, weights, tokenizer, .. } = checkpoint;
        Ok((learner, Base { path, name, id: weights.id(), vocabulary: hash::vocabulary(&tokenizer) }))
    }
}

/// Refuses a card where this program has no code for one.
#[cfg(feature = "cuda")]
#[allow(clippy::unnecessary_wraps, reason = "without the feature it refuses")]
fn compiled(_: Device) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(not(feature = "cuda"))]
fn compiled(device: Device) -> anyhow::Result<()> {
    let wanted = matches!(device, Device::Cuda(_));
    ensure!(
        !wanted,
        "--device {device}: this program was built without CUDA: build it with --features cuda, or take cpu"
    );
    Ok(())
}

#[cfg(feature = "cuda")]
fn on_card(weights: &Weights, ordinal: usize, tune: &Tune) -> anyhow::Result<Learner> {
    let begun = std::time::Instant::now();
    let learner =
        Learner::load_on_card(weights, ordinal, tune).with_context(|| format!("--device {}", Device::Cuda(ordinal)))?;
    tracing::info!(
        card = ordinal,
        seconds = begun.elapsed().as_secs_f64(),
        "learning on a card, the base model in bf16"
    );
    Ok(learner)
}

#[cfg(not(feature = "cuda"))]
fn on_card(_: &Weights, ordinal: usize, _: &Tune) -> anyhow::Result<Learner> {
    compiled(Device::Cuda(ordinal)).and_then(|()| anyhow::bail!("no card was asked for"))
}

/// A base model, as runs are known by it.
#[derive(Debug)]
pub(super) struct Base {
    /// Where it lies.
    pub(super) path: PathBuf,
    /// What it calls itself.
    pub(super) name: String,
    /// A name for its content.
    pub(super) id: String,
    /// What its vocabulary is known by.
    pub(super) vocabulary: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_card_is_refused_by_name_where_there_is_no_code_for_one() {
        let error = compiled(Device::Cuda(1)).unwrap_err().to_string();
        assert!(error.contains("--device cuda:1") && error.contains("--features cuda"), "{error}");
        assert!(compiled(Device::Cpu).is_ok() && compiled(Device::Auto).is_ok());
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn what_a_card_cannot_learn_is_said_before_one_is_looked_for() {
        let temp = tempfile::tempdir().unwrap();
        let weights = crate::tiny::weights(temp.path(), 48);
        let error = format!("{:#}", on_card(&weights, 7, &Tune::Lora(crate::tiny::lora())).unwrap_err());
        assert!(error.contains("--device cuda:7") && error.contains("no kernel for heads of width 16"), "{error}");
    }
}
