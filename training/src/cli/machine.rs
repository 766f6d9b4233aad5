//! What a command computes with.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{bail, ensure};
use waymark::cli::assembly;
use waymark::config::{Device, Size, cores};
use waymark_models::checkpoint::Checkpoint;
use waymark_models::gradient::Learner;
use waymark_models::kernel::Team;

use crate::hash;
use crate::product;
use crate::recipe::Recipe;

/// What a command computes with. None of it changes a result.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Machine {
    /// What learns: only the processor does so far.
    #[arg(long, env = "WAYMARK_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    device: Device,

    /// Threads that compute; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    pub(super) threads: usize,

    /// Memory that a pass may take, such as `6GiB`: layers whose activations do not fit are computed again in the
    /// backward pass. Without it all are kept.
    #[arg(long, env = "WAYMARK_TRAIN_MEMORY", value_name = "SIZE")]
    memory: Option<Size>,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    pub(super) cache: Option<PathBuf>,
}

impl Machine {
    /// Its threads.
    pub(super) fn team(&self) -> Arc<Team> {
        Arc::new(Team::new(if self.threads == 0 { cores() } else { self.threads }))
    }

    /// The recipe's base model with what is learnt of it.
    pub(super) fn learner(&self, recipe: &Recipe, team: Arc<Team>) -> anyhow::Result<(Learner, Base)> {
        if let Device::Cuda(_) = self.device {
            bail!(
                "--device {}: learning runs on the processor, the backward pass has no kernels for a card; rollouts of \
                 `train grpo` take one with --rollout-device",
                self.device
            );
        }
        let (checkpoint, path) = assembly::checkpoint(&recipe.base, self.cache.clone())?;
        let flaw = product::flaw(&path).filter(|_| recipe.adapter.is_none());
        ensure!(flaw.is_none(), flaw.unwrap_or_default());
        let mut learner = Learner::load_with(&checkpoint.weights, team, &recipe.tune(), recipe.arithmetic)?;
        learner.set_limit(self.memory.map(|size| size.0));
        let Checkpoint { name, weights, tokenizer, .. } = checkpoint;
        Ok((learner, Base { path, name, id: weights.id(), vocabulary: hash::vocabulary(&tokenizer) }))
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
