//! What trajectories are worth: one file per reward.
//!
//! | file | whose | what |
//! |---|---|---|
//! | `exact` | Search-R1; RouteRAG, stage 1 | whether the answer is a gold one |
//! | `format` | Search-R1 | the same with a bonus for form |
//! | `efficiency` | RouteRAG, stage 2 | the same with the price of retrieval beside that of the batch |
//! | `balance` | verl | the order in which RouteRAG's program mixes up those prices |
//! | `graph_r1` | Graph-R1, PathRouter's base | form, then F1 |
//! | `searcher` | R1-Searcher | form, cover-EM or F1 |
//! | `graphrag_r1` | GraphRAG-R1 | attenuation of searches, cost-aware F1 |
//! | `path_router` | PathRouter | F1, support and shape; weights of advantages |
//! | `tearag` | TeaRAG | F1, form, and how much of the gold passages a path came by |
//! | `evo_rag` | EVO-RAG | step rewards, and their weights over time |
//! | `extract` | | the answer in a decoded sequence |
//! | `judge`, `beside`, `likeness` | | a reward at work, and what it may look at besides the trajectory |

mod balance;
mod beside;
mod efficiency;
pub mod evo_rag;
mod exact;
pub mod extract;
mod format;
pub mod graph_r1;
pub mod graphrag_r1;
mod judge;
mod likeness;
pub mod path_router;
pub mod searcher;
pub mod tearag;

pub use balance::balanced;
pub use beside::Beside;
pub use efficiency::{Efficiency, Pairing, efficiencies, percentile};
pub use exact::ExactMatch;
pub use format::{Form, FormatBonus};
pub use judge::Judge;
pub use likeness::Likeness;

#[cfg(test)]
mod loops;
#[cfg(test)]
mod others;
#[cfg(test)]
pub(crate) mod tests;

use serde::{Deserialize, Serialize};
use waymark::metric::Cost;

use crate::sample::{Reward as Worth, Sample};

/// Values trajectories.
pub trait Reward: std::fmt::Debug + Send + Sync {
    /// What each sample is worth, in their order. A reward may depend on the others of the batch: `samples` are all
    /// trajectories of one training step. One that does has a [`score_beside`](Self::score_beside) of its own.
    fn score(&self, samples: &[Sample]) -> Vec<Worth>;

    /// Texts of a sample, or beside it, that it compares by their likeness.
    fn texts(&self, sample: &Sample, beside: &Beside<'_>) -> Vec<String> {
        let _ = (sample, beside);
        Vec::new()
    }

    /// As [`score`](Self::score), where more is known of each sample than it says itself, and how alike its
    /// [`texts`](Self::texts) are. A reward that does not look at that is the same.
    fn score_beside(&self, samples: &[&Sample], beside: &[Beside<'_>], likeness: &Likeness) -> Vec<Worth> {
        let _ = (beside, likeness);
        samples.iter().flat_map(|sample| self.score(std::slice::from_ref(*sample))).collect()
    }

    /// Whether it takes a question of one supporting passage, or of unknown ones, otherwise than one of several.
    fn counts_hops(&self) -> bool {
        false
    }

    /// Whether it is another reward where the support of no question is known.
    fn needs_support(&self) -> bool {
        false
    }
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
    /// [`graph_r1::GraphR1`].
    GraphR1,
    /// [`path_router::PathRouter`].
    PathRouter(path_router::PathRouter),
    /// [`graphrag_r1::Attenuated`].
    Attenuated(graphrag_r1::Attenuated),
    /// [`graphrag_r1::CostAware`].
    CostAware(graphrag_r1::CostAware),
    /// [`tearag::TeaRag`].
    #[serde(rename = "tearag")]
    TeaRag(tearag::TeaRag),
    /// [`evo_rag::EvoRag`].
    EvoRag(evo_rag::EvoRag),
}

impl Choice {
    /// The reward itself.
    pub fn reward(&self) -> Box<dyn Reward> {
        match self.clone() {
            Choice::ExactMatch => Box::new(ExactMatch),
            Choice::FormatBonus(reward) => Box::new(reward),
            Choice::Efficiency(reward) => Box::new(reward),
            Choice::GraphR1 => Box::new(graph_r1::GraphR1),
            Choice::PathRouter(reward) => Box::new(reward),
            Choice::Attenuated(reward) => Box::new(reward),
            Choice::CostAware(reward) => Box::new(reward),
            Choice::TeaRag(reward) => Box::new(reward),
            Choice::EvoRag(reward) => Box::new(reward),
        }
    }

    /// How it prices searches; none where their price is not rewarded.
    pub fn cost(&self) -> Option<Cost> {
        match self {
            Choice::Efficiency(reward) => Some(reward.cost),
            _ => None,
        }
    }
}

/// A total with its parts.
fn worth<const N: usize>(total: f64, parts: [(&str, f64); N]) -> Worth {
    Worth { total, parts: parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}
