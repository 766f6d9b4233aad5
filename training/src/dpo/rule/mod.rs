//! Rules that select preference pairs among the trajectories of a question, one file per rule.

mod siblings;
mod tearag;

use serde::{Deserialize, Serialize};

pub use siblings::Siblings;
pub use tearag::TeaRagRule;

pub(crate) use siblings::states;

use crate::sample::Sample;

/// Pair rule, as named in a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairRule {
    /// [`Siblings`].
    Siblings(Siblings),
    /// [`TeaRagRule`].
    #[serde(rename = "tearag")]
    TeaRag(TeaRagRule),
}

/// Pair of trajectories of a question, by their indexes in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preference {
    /// Index of the preferred trajectory.
    pub chosen: usize,
    /// Index of the other trajectory.
    pub rejected: usize,
    /// First turn in which they differ, counted from 0. The pair trains no token before that turn.
    pub turn: usize,
}

impl Preference {
    /// Shifts the indexes by `first`, the number of trajectories before this group.
    pub(super) fn after(self, first: usize) -> Self {
        Self { chosen: first + self.chosen, rejected: first + self.rejected, ..self }
    }
}

impl PairRule {
    /// Selects the pairs of one question, whose trajectories have rewards.
    pub fn pairs(&self, group: &[&Sample]) -> Vec<Preference> {
        match self {
            PairRule::Siblings(rule) => rule.pairs(group),
            PairRule::TeaRag(rule) => rule.pairs(group),
        }
    }

    /// Returns `true` if the thresholds never make a trajectory both chosen and rejected.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            PairRule::Siblings(rule) => rule.margin >= 0.0,
            PairRule::TeaRag(rule) => rule.wrong < rule.single.min(rule.right) && rule.poor <= rule.reasoned,
        }
    }
}

/// Total reward of a trajectory.
fn total(sample: &Sample) -> f64 {
    sample.reward.as_ref().map_or(0.0, |reward| reward.total)
}
