//! Stage of DPO training: its reward, pair rule and length.

use std::sync::Arc;

use waymark_agent::metric::Cost;
use waymark_index::Embed;

use super::PairRule;
use super::loss::DpoTerms;
use crate::recipe::Dpo;
use crate::recipe::dpo::{DpoStage, StageStart};
use crate::reward::RewardScorer;

/// Stage of DPO training with one reward.
#[derive(Debug)]
pub struct DpoGoal {
    /// Phase name of the stage in the metrics.
    pub phase: String,
    /// Maximum number of rounds.
    pub rounds: usize,
    /// Number of rounds without a better measurement after which the stage ends. 0 disables early stopping.
    pub patience: usize,
    /// Number of epochs over the pairs of a round.
    pub epochs: usize,
    /// Initial policy of the stage.
    pub begins: StageStart,
    /// Coefficients of the loss.
    pub terms: DpoTerms,
    /// Reward of trajectories.
    pub reward: RewardScorer,
    /// Rule that selects the pairs.
    pub rule: PairRule,
    /// Cost model of searches.
    pub cost: Cost,
}

impl DpoGoal {
    /// Creates the stage `number` of a recipe, counted from 1. `embedder` serves rewards that compare texts.
    pub fn of(stage: &DpoStage, number: usize, settings: &Dpo, embedder: Arc<dyn Embed>) -> DpoGoal {
        DpoGoal {
            phase: format!("dpo{number}"),
            rounds: stage.rounds,
            patience: stage.patience,
            epochs: stage.epochs,
            begins: stage.begins,
            terms: DpoTerms { beta: settings.beta, nll: stage.nll },
            reward: RewardScorer::new(stage.reward.reward(), embedder),
            rule: stage.pairs,
            cost: stage.reward.cost().unwrap_or(settings.cost),
        }
    }

    /// Returns the number of optimizer steps of a round with this many pairs, `batch` in each step. The last step of an
    /// epoch may have fewer.
    pub(super) fn updates(&self, pairs: usize, batch: usize) -> u64 {
        (self.epochs * pairs.div_ceil(batch)) as u64
    }
}
