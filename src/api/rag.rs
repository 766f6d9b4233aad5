//! The `rag` extension: how to search, and the trace of what was done.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::Mode;

use crate::agent::Event;

/// How an episode searches, and whether it shows it.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RagOptions {
    /// Whether searches and observations are shown, under `rag` beside the content.
    pub trace: Option<bool>,
    /// Which search is made when the policy names none: `passage`, `graph` or `hybrid`.
    #[schema(value_type = Option<String>)]
    pub mode: Option<Mode>,
    /// How many passages a search returns.
    #[schema(minimum = 1, maximum = 50)]
    pub k: Option<usize>,
    /// Tighter bounds than the policy's own.
    pub budget: Option<BudgetOptions>,
    /// Whether generation is guided through the protocol, for policies that were not trained for it.
    pub guided: Option<bool>,
}

/// Bounds of an episode. Each may lower the policy's own, never raise it.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetOptions {
    /// Rounds with the environment.
    pub turns: Option<usize>,
    /// Tokens that one turn may sample.
    #[schema(minimum = 1)]
    pub turn_tokens: Option<usize>,
    /// Tokens of one observation.
    #[schema(minimum = 1)]
    pub observation_tokens: Option<usize>,
    /// Wall time in seconds.
    #[schema(exclusive_minimum = 0)]
    pub seconds: Option<f64>,
}

/// What was done on the way to an answer. In a stream each delta holds the new entries; clients that join lists by
/// `index`, as OpenAI's do, end up with the same list that a whole completion has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct RagTrace {
    /// Searches, observations, invalid actions and bounds, in order.
    pub trace: Vec<RagStep>,
}

/// One entry of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RagStep {
    /// Its place in the trace, from 0.
    pub index: usize,
    /// What happened; `type` names it.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub event: Event,
}
