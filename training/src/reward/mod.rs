//! What trajectories are worth: one file per reward.
//!
//! | file | whose | what |
//! |---|---|---|
//! | `exact` | Search-R1; RouteRAG, stage 1 | whether the answer is a gold one |
//! | `format` | Search-R1 | the same with a bonus for form |
//! | `efficiency` | RouteRAG, stage 2 | the same with the price of retrieval beside that of the batch |
//! | `balance` | verl | the order in which RouteRAG's program mixes up those prices |
//! | `extract` | | the answer in a decoded sequence |

mod balance;
mod efficiency;
mod exact;
pub mod extract;
mod format;

pub use balance::balanced;
pub use efficiency::{Efficiency, Pairing, efficiencies, percentile};
pub use exact::ExactMatch;
pub use format::{Form, FormatBonus};
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::sample::{Reward as Worth, Sample};

/// Values trajectories.
pub trait Reward: std::fmt::Debug + Send + Sync {
    /// What each sample is worth, in their order. A reward may depend on the others of the batch: `samples` are all
    /// trajectories of one training step.
    fn score(&self, samples: &[Sample]) -> Vec<Worth>;
}

/// A reward as a recipe names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// [`ExactMatch`].
    ExactMatch,
    /// [`FormatBonus`].
    FormatBonus(FormatBonus),
    /// [`Efficiency`].
    Efficiency(Efficiency),
}

impl Choice {
    /// The reward itself.
    pub fn reward(&self) -> Box<dyn Reward> {
        match self.clone() {
            Choice::ExactMatch => Box::new(ExactMatch),
            Choice::FormatBonus(reward) => Box::new(reward),
            Choice::Efficiency(reward) => Box::new(reward),
        }
    }
}

/// A total with its parts.
fn worth<const N: usize>(total: f64, parts: [(&str, f64); N]) -> Worth {
    Worth { total, parts: parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}
