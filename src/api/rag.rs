//! The `rag` extension: how to search, the trace of what was done, and what supports an answer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::{Condition, GraphVariant, Mode, Ranking};

use super::body::within;
use super::error::ApiError;
use super::schema;
use crate::agent::{Cited, EpisodeOptions, Event, MAX_K};

/// How an episode searches, and whether it shows it.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RagOptions {
    /// Whether searches and observations are shown, under `rag` beside the content.
    pub trace: Option<bool>,
    /// Whether the passages that support the answer are told with the end of a chat's answer, under `rag` beside its
    /// content. `/v1/agent` always tells them, and responses have them as annotations.
    pub citations: Option<bool>,
    /// Which search is made, whatever the policy writes: `passage`, `graph` or `hybrid`; `triples` and `kag` where the
    /// policy's protocol shows what they find.
    #[schema(value_type = Option<String>)]
    pub mode: Option<Mode>,
    /// How passages are ranked in passage search: `fused`, `dense` or `bm25`.
    #[schema(value_type = Option<String>)]
    pub ranking: Option<Ranking>,
    /// Whose graph search is made: `route_rag`, `hippo_rag` or `graph_r1`.
    #[schema(value_type = Option<String>)]
    pub graph: Option<GraphVariant>,
    /// The name of the index to search: `default`, or that of its folder. Only the one that is served is known.
    pub index: Option<String>,
    /// How many passages a search returns.
    #[schema(minimum = 1, maximum = 200)]
    pub k: Option<usize>,
    /// What the metadata of documents must say: the searches of the policy find no others.
    #[schema(value_type = Option<schema::Condition>)]
    pub filters: Option<Condition>,
    /// Tighter bounds than the policy's own.
    pub budget: Option<BudgetOptions>,
    /// Whether a trace of the episode may be kept (`/v1/traces`); it is, if the server keeps any, when not given.
    pub store: Option<bool>,
    /// Whether generation is guided through the protocol, for policies that were not trained for it.
    pub guided: Option<bool>,
}

/// Bounds of an episode, beside those of the policy: the tighter one holds.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetOptions {
    /// Rounds with the environment.
    pub turns: Option<usize>,
    /// Searches that are executed; one that repeats an earlier one of the episode costs none. Instead of one too many an
    /// answer is asked for.
    pub searches: Option<usize>,
    /// Tokens of all observations together: the one that would exceed it is cut, and there is none after it.
    pub environment_tokens: Option<usize>,
    /// Wall time in seconds.
    #[schema(exclusive_minimum = 0)]
    pub seconds: Option<f64>,
}

impl RagOptions {
    /// Writes what was asked for into the options of an episode.
    ///
    /// # Errors
    /// Names the field whose value is out of range.
    pub(crate) fn apply(&self, options: &mut EpisodeOptions) -> Result<(), ApiError> {
        let budget = self.budget.clone().unwrap_or_default();
        if budget.seconds.is_some_and(|seconds| seconds <= 0.0) {
            return Err(ApiError::invalid("rag.budget.seconds", "`rag.budget.seconds` must be above 0"));
        }
        options.mode = self.mode;
        options.ranking = self.ranking;
        options.graph = self.graph;
        options.only = self.filters.clone().map(Arc::new);
        options.k = within("rag.k", self.k, 1, MAX_K)?;
        options.guided = self.guided;
        options.store = self.store;
        options.cites |= self.citations == Some(true);
        options.turns = budget.turns;
        options.searches = budget.searches;
        options.environment_tokens = budget.environment_tokens;
        options.seconds = budget.seconds;
        Ok(())
    }
}

/// What is told beside the content of a chat's answer, each part where it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct RagNotes {
    /// Searches, observations, invalid actions and bounds, in order. In a stream each delta holds the new entries; clients
    /// that join lists by `index`, as OpenAI's do, end up with the same list that a whole completion has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Vec<RagStep>>,
    /// The passages that support the answer, in the order of its text; empty without an answer. In a stream the last delta
    /// of the answer holds them all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub citations: Option<Vec<Cited>>,
}

/// What was done on the way to an answer. In a stream each entry is told by an event `response.rag.step` too.
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
