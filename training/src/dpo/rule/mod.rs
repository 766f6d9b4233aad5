//! Which trajectories of a question are preferred to which: one file per rule.

mod siblings;
mod tearag;

use serde::{Deserialize, Serialize};

pub use siblings::Siblings;
pub use tearag::TeaRag;

pub(crate) use siblings::states;

use crate::sample::Sample;

/// A rule as a recipe names it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// [`Siblings`].
    Siblings(Siblings),
    /// [`TeaRag`].
    #[serde(rename = "tearag")]
    TeaRag(TeaRag),
}

/// Two trajectories of a question, by their places among all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preference {
    /// The preferred one.
    pub chosen: usize,
    /// The other one.
    pub rejected: usize,
    /// The turn, counted from 0, in which they part: what the policy wrote before it is not learnt from this pair.
    pub turn: usize,
}

impl Preference {
    /// The same by places among more trajectories, `first` of which lie before these.
    pub(super) fn after(self, first: usize) -> Self {
        Self { chosen: first + self.chosen, rejected: first + self.rejected, ..self }
    }
}

impl Rule {
    /// The pairs among the trajectories of one question, which are rewarded.
    pub fn pairs(&self, group: &[&Sample]) -> Vec<Preference> {
        match self {
            Rule::Siblings(rule) => rule.pairs(group),
            Rule::TeaRag(rule) => rule.pairs(group),
        }
    }

    /// Whether no trajectory can be both chosen and rejected.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Rule::Siblings(rule) => rule.margin >= 0.0,
            Rule::TeaRag(rule) => rule.wrong < rule.single.min(rule.right) && rule.poor <= rule.reasoned,
        }
    }
}

/// What a trajectory was worth.
fn total(sample: &Sample) -> f64 {
    sample.reward.as_ref().map_or(0.0, |reward| reward.total)
}
