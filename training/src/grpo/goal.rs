//! Stage of GRPO training: its reward, length, and criterion for the best step.

use std::sync::Arc;

use waymark_agent::metric::Cost;
use waymark_index::Embed;

use crate::TrainError;
use crate::recipe::{Grpo, GrpoStage};
use crate::reward::{ExactMatch, RewardScorer};
use crate::rollout::Rollout;

/// Stage of GRPO training with one reward.
#[derive(Debug)]
pub struct GrpoGoal {
    /// Phase name of the stage in the metrics.
    pub phase: String,
    /// Number of steps.
    pub steps: usize,
    /// Reward.
    pub reward: RewardScorer,
    /// Price of searches, in the metrics and in rewards that use it.
    pub cost: Cost,
    /// Weight of that cost against EM when the best step is chosen. `None` for rewards that ignore the cost.
    pub thrift: Option<f64>,
}

impl GrpoGoal {
    /// Creates the stage `number` of a recipe, counted from 1. `embedder` serves rewards that compare texts.
    pub fn of(stage: &GrpoStage, number: usize, settings: &Grpo, embedder: Arc<dyn Embed>) -> GrpoGoal {
        let own = stage.reward.cost();
        GrpoGoal {
            phase: format!("grpo{number}"),
            steps: stage.steps,
            reward: RewardScorer::new(stage.reward.reward(), embedder),
            cost: own.unwrap_or(settings.cost),
            thrift: own.map(|_| settings.thrift),
        }
    }

    /// Merit of a policy by its validation rollouts: the mean reward.
    ///
    /// A reward that uses the cost compares the trajectories of a batch with one another, so its mean does not
    /// distinguish a cheap policy from an expensive one. For such rewards the merit is the mean of `EM − thrift ·
    /// cost`.
    ///
    /// # Errors
    /// Same as [`RewardScorer::score`].
    pub(super) fn merit(&self, rollouts: &[Rollout]) -> Result<f64, TrainError> {
        let worth: f64 = match self.thrift {
            None => self.reward.score(rollouts)?.iter().map(|worth| worth.total).sum(),
            Some(thrift) => {
                let own = |rollout: &Rollout| ExactMatch::of_sample(&rollout.sample) - thrift * rollout.row.cost;
                rollouts.iter().map(own).sum()
            }
        };
        Ok(worth / rollouts.len().max(1) as f64)
    }
}
