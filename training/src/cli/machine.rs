//! What a command computes with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::ensure;
use waymark::cli::assembly;
use waymark::config::{Size, cores};
use waymark_models::gradient::Learner;
use waymark_models::kernel::Team;

use crate::product;
use crate::recipe::Recipe;

/// What a command computes with. None of it changes a result.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Machine {
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

    /// The recipe's base model with what is learnt of it, as the policy or run `init` left it; and where the base is.
    pub(super) fn learner(
        &self,
        recipe: &Recipe,
        init: Option<&Path>,
        team: Arc<Team>,
    ) -> anyhow::Result<(Learner, PathBuf)> {
        let (checkpoint, path) = assembly::checkpoint(&recipe.base, self.cache.clone())?;
        let flaw = product::flaw(&path).filter(|_| recipe.adapter.is_none());
        ensure!(flaw.is_none(), flaw.unwrap_or_default());
        let mut learner = Learner::load(&checkpoint.weights, team, &recipe.tune())?;
        learner.set_limit(self.memory.map(|size| size.0));
        if let Some(init) = init {
            ensure!(
                recipe.adapter.is_some(),
                "--init is an adapter: to go on with all weights, --set base=DIR/policy/model"
            );
            learner.load_adapter(&product::policy_dir(init))?;
        }
        Ok((learner, path))
    }
}
