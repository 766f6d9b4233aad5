//! Reward functions, one per file.
//!
//! | file | system | contents |
//! |---|---|---|
//! | `exact` | Search-R1; RouteRAG, stage 1 | exact match |
//! | `format` | Search-R1 | exact match with a bonus for the format |
//! | `efficiency` | RouteRAG, stage 2 | exact match with retrieval cost relative to the batch |
//! | `balance` | verl | batch balancing, by which RouteRAG's program mixes up retrieval costs |
//! | `graph_r1` | Graph-R1, PathRouter's base | format, then F1 |
//! | `searcher` | R1-Searcher | format, cover-EM or F1 |
//! | `graphrag_r1` | GraphRAG-R1 | attenuated retrieval reward, cost-aware F1, both |
//! | `path_router` | PathRouter | F1, support and shape; weights of advantages |
//! | `evidence_measure`, `route_shares` | PathRouter | measures of the evidence, and the routes of a batch |
//! | `tearag` | TeaRAG | F1, format, and coverage of the gold passages |
//! | `evo_rag` | EVO-RAG | step rewards with weights over time |
//! | `extract` | | extraction of the answer from a decoded sequence |
//! | `scorer`, `context` | | scoring of rollouts, and its inputs besides the trajectory |

mod balance;
mod context;
mod efficiency;
pub mod evidence_measure;
pub mod evo_rag;
mod exact;
pub mod extract;
mod format;
pub mod graph_r1;
pub mod graphrag_r1;
pub mod path_router;
pub mod route_shares;
mod scorer;
pub mod searcher;
pub mod tearag;

pub use balance::balanced;
pub use context::RewardContext;
pub use efficiency::{Efficiency, Pairing, efficiencies, percentile};
pub use exact::ExactMatch;
pub use format::{FormatBonus, FormatState};
pub use scorer::RewardScorer;
pub use waymark_runtime::evaluate::TextSimilarity;

#[cfg(test)]
mod formula_tests;
#[cfg(test)]
mod protocol_tests;
#[cfg(test)]
pub(crate) mod tests;

use serde::{Deserialize, Serialize};
use waymark_agent::metric::Cost;

use crate::sample::{RewardValue, Sample};

/// Reward function.
pub trait Reward: std::fmt::Debug + Send + Sync {
    /// Scores each sample, in order. `samples` are all trajectories of one training step, because a reward may depend
    /// on the batch; such a reward must also implement [`score_in_context`](Self::score_in_context).
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue>;

    /// Texts whose similarity the reward needs.
    fn texts(&self, sample: &Sample, context: &RewardContext<'_>) -> Vec<String> {
        let _ = (sample, context);
        Vec::new()
    }

    /// Scores samples with additional inputs: facts about each sample, and the similarity of their
    /// [`texts`](Self::texts). By default both are ignored and each sample is scored with [`score`](Self::score).
    fn score_in_context(
        &self,
        samples: &[&Sample],
        context: &[RewardContext<'_>],
        similarity: &TextSimilarity,
    ) -> Vec<RewardValue> {
        let _ = (context, similarity);
        // One call per sample: a reward without context does not depend on its batch.
        samples.iter().flat_map(|sample| self.score(std::slice::from_ref(*sample))).collect()
    }

    /// Returns `true` if the reward treats single-hop questions (at most one known supporting passage) differently
    /// from multi-hop questions.
    fn counts_hops(&self) -> bool {
        false
    }

    /// Returns `true` if the reward is meaningful only for questions with known supporting passages.
    fn needs_support(&self) -> bool {
        false
    }
}

/// Reward function as named in a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardChoice {
    /// [`ExactMatch`].
    ExactMatch,
    /// [`FormatBonus`].
    FormatBonus(FormatBonus),
    /// [`Efficiency`].
    Efficiency(Efficiency),
    /// [`graph_r1::GraphR1`].
    GraphR1,
    /// [`path_router::PathRouterReward`].
    PathRouter(path_router::PathRouterReward),
    /// [`graphrag_r1::Attenuated`].
    Attenuated(graphrag_r1::Attenuated),
    /// [`graphrag_r1::CostAware`].
    CostAware(graphrag_r1::CostAware),
    /// [`graphrag_r1::AttenuatedCostAware`].
    AttenuatedCostAware(graphrag_r1::AttenuatedCostAware),
    /// [`searcher::SearcherReward`].
    R1Searcher(searcher::SearcherReward),
    /// [`tearag::TeaRagReward`].
    #[serde(rename = "tearag")]
    TeaRag(tearag::TeaRagReward),
    /// [`evo_rag::EvoRagReward`].
    EvoRag(evo_rag::EvoRagReward),
}

impl RewardChoice {
    /// Creates the reward function.
    pub fn reward(&self) -> Box<dyn Reward> {
        match self.clone() {
            RewardChoice::ExactMatch => Box::new(ExactMatch),
            RewardChoice::FormatBonus(reward) => Box::new(reward),
            RewardChoice::Efficiency(reward) => Box::new(reward),
            RewardChoice::GraphR1 => Box::new(graph_r1::GraphR1),
            RewardChoice::PathRouter(reward) => Box::new(reward),
            RewardChoice::Attenuated(reward) => Box::new(reward),
            RewardChoice::CostAware(reward) => Box::new(reward),
            RewardChoice::AttenuatedCostAware(reward) => Box::new(reward),
            RewardChoice::R1Searcher(reward) => Box::new(reward),
            RewardChoice::TeaRag(reward) => Box::new(reward),
            RewardChoice::EvoRag(reward) => Box::new(reward),
        }
    }

    /// Returns `true` if the value of a trajectory depends on the others of its batch.
    pub fn is_relative(&self) -> bool {
        matches!(self, RewardChoice::Efficiency(_))
    }

    /// Returns `true` if the reward compares texts by their embeddings.
    pub fn needs_embedder(&self) -> bool {
        matches!(self, RewardChoice::TeaRag(_) | RewardChoice::EvoRag(_))
    }

    /// Returns `true` if a right refusal earns more than a wrong answer. Under other rewards, training on questions
    /// with withheld passages teaches the policy to guess.
    pub fn rewards_refusals(&self) -> bool {
        matches!(self, RewardChoice::EvoRag(_))
    }

    /// Returns the cost model of the reward. `None` if the reward ignores costs.
    pub fn cost(&self) -> Option<Cost> {
        match self {
            RewardChoice::Efficiency(reward) => Some(reward.cost),
            _ => None,
        }
    }
}

/// Creates a reward value from its total and its components.
fn reward_value<const N: usize>(total: f64, parts: [(&str, f64); N]) -> RewardValue {
    RewardValue { total, parts: parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}
