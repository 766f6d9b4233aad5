//! A reward at work: what rollouts are worth by it.

use std::fmt;
use std::sync::Arc;

use waymark_index::Embed;

use super::{Beside, Likeness, Reward};
use crate::TrainError;
use crate::rollout::Rollout;
use crate::sample::{Reward as Worth, Sample};

/// A reward, with what tells how alike texts are where it asks that.
pub struct Judge {
    reward: Box<dyn Reward>,
    embedder: Arc<dyn Embed>,
}

impl Judge {
    /// Values by `reward`.
    pub fn new(reward: Box<dyn Reward>, embedder: Arc<dyn Embed>) -> Self {
        Self { reward, embedder }
    }

    /// Whether it is another reward where the support of no question is known.
    pub fn needs_support(&self) -> bool {
        self.reward.needs_support()
    }

    /// Whether it takes questions of one hop otherwise than those of several.
    pub fn counts_hops(&self) -> bool {
        self.reward.counts_hops()
    }

    /// What each of a step's rollouts is worth. Searches cost there what their rows say: there is one price.
    ///
    /// # Errors
    /// When texts are to be compared and cannot be embedded.
    pub fn score(&self, rollouts: &[Rollout]) -> Result<Vec<Worth>, TrainError> {
        let beside: Vec<Beside<'_>> =
            rollouts.iter().map(|rollout| Beside { cost: rollout.row.cost, support: &rollout.support }).collect();
        let samples: Vec<&Sample> = rollouts.iter().map(|rollout| &rollout.sample).collect();
        let texts = samples.iter().zip(&beside).flat_map(|(sample, beside)| self.reward.texts(sample, beside));
        let likeness = Likeness::of(self.embedder.as_ref(), texts).map_err(TrainError::Embed)?;
        Ok(self.reward.score_beside(&samples, &beside, &likeness))
    }
}

impl fmt::Debug for Judge {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reward.fmt(out)
    }
}
