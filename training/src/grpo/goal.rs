//! What is rewarded, for how long, and by what the best step of that time is known.

use std::sync::Arc;

use waymark::metric::Cost;
use waymark_index::Embed;

use crate::TrainError;
use crate::recipe::{Grpo, Stage};
use crate::reward::{ExactMatch, Judge};
use crate::rollout::Rollout;

/// Steps under one reward.
#[derive(Debug)]
pub struct Goal {
    /// What their numbers are filed under.
    pub phase: String,
    /// How many.
    pub steps: usize,
    /// What is rewarded.
    pub reward: Judge,
    /// How searches are priced: in the numbers, and in the reward where it looks at that.
    pub cost: Cost,
    /// What a unit of that cost weighs against EM when the best step is chosen; none for rewards that do not look at it.
    pub thrift: Option<f64>,
}

impl Goal {
    /// A stage of a recipe, counted from 1. `embedder` compares texts, in rewards that do.
    pub fn of(stage: &Stage, number: usize, settings: &Grpo, embedder: Arc<dyn Embed>) -> Goal {
        let own = stage.reward.cost();
        Goal {
            phase: format!("grpo{number}"),
            steps: stage.steps,
            reward: Judge::new(stage.reward.reward(), embedder),
            cost: own.unwrap_or(settings.cost),
            thrift: own.map(|_| settings.thrift),
        }
    }

    /// By how much a policy that answers so is the better one: the mean of the reward.
    ///
    /// A reward that looks at the cost compares the trajectories of a batch with one another, and its mean is the same
    /// for a cheap policy and for a dear one. There it is the mean of `EM − thrift · cost`.
    ///
    /// # Errors
    /// As [`Judge::score`].
    pub(super) fn merit(&self, rollouts: &[Rollout]) -> Result<f64, TrainError> {
        let worth: f64 = match self.thrift {
            None => self.reward.score(rollouts)?.iter().map(|worth| worth.total).sum(),
            Some(thrift) => {
                let own = |rollout: &Rollout| ExactMatch::earned(&rollout.sample) - thrift * rollout.row.cost;
                rollouts.iter().map(own).sum()
            }
        };
        Ok(worth / rollouts.len().max(1) as f64)
    }
}
