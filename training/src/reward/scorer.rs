//! Scoring of rollouts with a reward function.

use std::fmt;
use std::sync::Arc;

use waymark_index::Embed;

use super::{Reward, RewardContext, TextSimilarity};
use crate::TrainError;
use crate::rollout::Rollout;
use crate::sample::{RewardValue, Sample};

/// Reward function with the embedder for the texts it compares.
pub struct RewardScorer {
    reward: Box<dyn Reward>,
    embedder: Arc<dyn Embed>,
}

impl RewardScorer {
    /// Creates a scorer that scores with `reward`.
    pub fn new(reward: Box<dyn Reward>, embedder: Arc<dyn Embed>) -> Self {
        Self { reward, embedder }
    }

    /// Returns `true` if the reward is meaningful only for questions with known supporting passages.
    pub fn needs_support(&self) -> bool {
        self.reward.needs_support()
    }

    /// Returns `true` if the reward treats single-hop questions differently.
    pub fn counts_hops(&self) -> bool {
        self.reward.counts_hops()
    }

    /// Scores the rollouts of a step. Retrieval costs come from their evaluation rows, so that a stage has a single
    /// cost model.
    ///
    /// # Errors
    /// If the texts that the reward compares cannot be embedded.
    pub fn score(&self, rollouts: &[Rollout]) -> Result<Vec<RewardValue>, TrainError> {
        let context: Vec<RewardContext<'_>> = rollouts
            .iter()
            .map(|rollout| RewardContext { cost: rollout.row.cost, support: &rollout.support })
            .collect();
        let samples: Vec<&Sample> = rollouts.iter().map(|rollout| &rollout.sample).collect();
        let texts = samples.iter().zip(&context).flat_map(|(sample, context)| self.reward.texts(sample, context));
        let similarity = TextSimilarity::of(self.embedder.as_ref(), texts).map_err(TrainError::Embed)?;
        Ok(self.reward.score_in_context(&samples, &context, &similarity))
    }
}

impl fmt::Debug for RewardScorer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reward.fmt(out)
    }
}
