//! What a command computes with.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use waymark::cli::assembly;
use waymark::config::{Device, Size};
use waymark_models::checkpoint::Checkpoint;
use waymark_models::gradient::{Learner, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

use super::card::{Planned, Seen, Work};
use super::host::Host;
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

    /// Memory that a pass may take, such as `6GiB`: layers whose activations do not fit are computed again in the
    /// backward pass. Without it all are kept. On a card, where all are computed again, memory of the card for everything:
    /// weights, the adapter, the longest pass, and the engine where it rolls out on the same one. With `--dry-run` no card
    /// is asked then.
    #[arg(long, env = "WAYMARK_TRAIN_MEMORY", value_name = "SIZE")]
    memory: Option<Size>,

    #[command(flatten)]
    pub(super) host: Host,
}

impl Machine {
    /// Whether it learns on the card that `other` names.
    pub(super) fn is_also(&self, other: Device) -> bool {
        matches!((self.device, other), (Device::Cuda(0), Device::Auto))
            || self.device == other && self.device != Device::Cpu
    }

    /// The card that learns, where one does.
    pub(super) fn card(&self) -> Option<Device> {
        Some(self.device).filter(|device| matches!(device, Device::Cuda(_)))
    }

    /// The recipe's base model, of which nothing is loaded yet.
    pub(super) fn open(&self, recipe: &Recipe) -> anyhow::Result<Opened> {
        Opened::new(recipe, &self.host)
    }

    /// What `work` takes of the card that learns, which has it; nothing on the processor. In a dry run no card is asked
    /// where it was said how much memory there is.
    pub(super) fn plan(
        &self,
        opened: &Opened,
        recipe: &Recipe,
        work: &Work,
        dry_run: bool,
    ) -> anyhow::Result<Option<Planned>> {
        let Device::Cuda(ordinal) = self.device else { return Ok(None) };
        let limit = self.memory.map(|size| size.0);
        let named = || format!("--device {}", self.device);
        let seen = if dry_run && limit.is_some() { None } else { Some(look(ordinal).with_context(named)?) };
        let config = opened.checkpoint.weights.config();
        Planned::new(config, &recipe.tune(), work, seen, limit).with_context(named).map(Some)
    }

    /// What is learnt of the base model, in the memory that was planned for it, where that is a card's.
    pub(super) fn learner(
        &self,
        opened: Opened,
        recipe: &Recipe,
        team: Arc<Team>,
        planned: Option<&Planned>,
    ) -> anyhow::Result<(Learner, Base)> {
        let Opened { checkpoint, path } = opened;
        let (weights, tune) = (&checkpoint.weights, recipe.tune());
        let mut learner = match self.device {
            Device::Cuda(ordinal) => on_card(weights, ordinal, &tune, planned.map(|planned| planned.need.tokens))?,
            Device::Cpu | Device::Auto => Learner::load_with(weights, team, &tune, recipe.arithmetic)?,
        };
        // Of a card's, what cuBLAS and the engine take is not the learner's.
        let other = planned.map_or(0, |planned| planned.need.bytes() - planned.need.learner());
        let own = |limit: usize| limit.saturating_sub(other);
        learner.set_limit(self.memory.map(|size| own(size.0)));
        Ok((learner, Base::new(checkpoint, path)))
    }
}

/// What a recipe learns, where nothing is computed with it.
pub(super) fn on_processor(recipe: &Recipe, host: &Host) -> anyhow::Result<(Learner, Base)> {
    let Opened { checkpoint, path } = Opened::new(recipe, host)?;
    let learner = Learner::load_with(&checkpoint.weights, host.team(), &recipe.tune(), recipe.arithmetic)?;
    Ok((learner, Base::new(checkpoint, path)))
}

/// What card `ordinal` says of itself.
#[cfg(feature = "cuda")]
fn look(ordinal: usize) -> anyhow::Result<Seen> {
    let (info, free) = waymark_models::cuda::Card::look(ordinal)?;
    Ok(Seen { name: info.name, free, processors: info.processors })
}

#[cfg(not(feature = "cuda"))]
fn look(ordinal: usize) -> anyhow::Result<Seen> {
    compiled(Device::Cuda(ordinal)).and_then(|()| anyhow::bail!("no card was asked for"))
}

/// Refuses a card where this program has no code for one.
#[cfg(not(feature = "cuda"))]
fn compiled(device: Device) -> anyhow::Result<()> {
    let wanted = matches!(device, Device::Cuda(_));
    ensure!(!wanted, "this program was built without CUDA: build it with --features cuda, or take cpu");
    Ok(())
}

#[cfg(feature = "cuda")]
fn on_card(weights: &Weights, ordinal: usize, tune: &Tune, tokens: Option<usize>) -> anyhow::Result<Learner> {
    let begun = std::time::Instant::now();
    let learner = Learner::load_on_card(weights, ordinal, tune, tokens)
        .with_context(|| format!("--device {}", Device::Cuda(ordinal)))?;
    tracing::info!(
        card = ordinal,
        seconds = begun.elapsed().as_secs_f64(),
        "learning on a card, the base model in bf16"
    );
    Ok(learner)
}

#[cfg(not(feature = "cuda"))]
fn on_card(_: &Weights, ordinal: usize, _: &Tune, _: Option<usize>) -> anyhow::Result<Learner> {
    compiled(Device::Cuda(ordinal)).and_then(|()| anyhow::bail!("no card was asked for"))
}

/// A base model whose files were opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) checkpoint: Checkpoint,
    /// Where it lies.
    path: PathBuf,
}

impl Opened {
    fn new(recipe: &Recipe, host: &Host) -> anyhow::Result<Self> {
        let (checkpoint, path) = assembly::checkpoint(&recipe.base, host.cache.clone())?;
        let flaw = product::flaw(&path).filter(|_| recipe.adapter.is_none());
        ensure!(flaw.is_none(), flaw.unwrap_or_default());
        Ok(Self { checkpoint, path })
    }
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

impl Base {
    fn new(checkpoint: Checkpoint, path: PathBuf) -> Self {
        let Checkpoint { name, weights, tokenizer, .. } = checkpoint;
        Self { path, name, id: weights.id(), vocabulary: hash::vocabulary(&tokenizer) }
    }

    /// What a policy learnt from it says of it.
    pub(super) fn product(&self) -> product::Base<'_> {
        product::Base { path: &self.path, id: &self.id }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_card_is_refused_by_name_where_there_is_no_code_for_one() {
        let error = look(1).unwrap_err().to_string();
        assert!(error.contains("--features cuda"), "{error}");
        assert!(compiled(Device::Cpu).is_ok() && compiled(Device::Auto).is_ok());
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn what_a_card_cannot_learn_is_said_before_one_is_looked_for() {
        let temp = tempfile::tempdir().unwrap();
        let weights = crate::tiny::weights(temp.path(), 48);
        let error = format!("{:#}", on_card(&weights, 7, &Tune::Lora(crate::tiny::lora()), None).unwrap_err());
        assert!(error.contains("--device cuda:7") && error.contains("no kernel for heads of width 16"), "{error}");
    }
}
