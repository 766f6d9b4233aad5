//! The `rag` extension of requests: search options, the trace of an episode, and the passages that support an answer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_agent::{Cited, EpisodeOptions, Event, MAX_K};
use waymark_index::{Condition, GraphVariant, Mode, Ranking};

use super::body::within;
use super::error::ApiError;
use super::schema;

/// Search options of an episode.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RagOptions {
    /// If `true`, searches and observations are returned under `rag`, next to the content.
    pub trace: Option<bool>,
    /// If `true`, a chat's answer ends with the passages that support it, under `rag`, next to its content. `/v1/agent`
    /// always returns them, and responses have them as annotations.
    pub citations: Option<bool>,
    /// Kind of search, overriding the policy's choice: `passage`, `graph` or `hybrid`; also `triples` and `kag` if the
    /// policy's protocol can present their results.
    #[schema(value_type = Option<String>)]
    pub mode: Option<Mode>,
    /// Ranking of passages in passage search: `fused`, `dense` or `bm25`.
    #[schema(value_type = Option<String>)]
    pub ranking: Option<Ranking>,
    /// Algorithm of graph search: `route_rag`, `hippo_rag` or `graph_r1`.
    #[schema(value_type = Option<String>)]
    pub graph: Option<GraphVariant>,
    /// Name of the index to search: `default`, or the name of its directory. A server has one index.
    pub index: Option<String>,
    /// Number of passages per search.
    #[schema(minimum = 1, maximum = 200)]
    pub k: Option<usize>,
    /// Condition on the metadata of documents; the policy's searches find only matching documents.
    #[schema(value_type = Option<schema::ConditionSchema>)]
    pub filters: Option<Condition>,
    /// Limits that are tighter than the policy's own.
    pub budget: Option<BudgetOptions>,
    /// If `false`, no trace of the episode is kept (`/v1/traces`). Defaults to `true` if the server keeps traces.
    pub store: Option<bool>,
    /// If `true`, guided decoding enforces the protocol, for policies that were not trained for it. Defaults to the
    /// policy's setting.
    pub guided: Option<bool>,
}

/// Limits of an episode. The tighter of these and the policy's own applies.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetOptions {
    /// Maximum number of rounds with the environment.
    pub turns: Option<usize>,
    /// Maximum number of executed searches; repeated searches of an episode are not counted. Instead of one too many,
    /// the policy is asked for its answer.
    pub searches: Option<usize>,
    /// Maximum number of tokens of all observations together. The observation that would exceed it is truncated and is
    /// the last.
    pub environment_tokens: Option<usize>,
    /// Time limit in seconds.
    #[schema(exclusive_minimum = 0)]
    pub seconds: Option<f64>,
}

impl RagOptions {
    /// Applies these options to those of an episode.
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
        // Routes that always return citations have set this already.
        options.cites |= self.citations == Some(true);
        options.turns = budget.turns;
        options.searches = budget.searches;
        options.environment_tokens = budget.environment_tokens;
        options.seconds = budget.seconds;
        Ok(())
    }
}

/// Additional output next to the content of a chat's answer, as requested.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct RagNotes {
    /// Searches, observations, invalid actions and reached limits, in order. In a stream each delta holds the new
    /// entries. Clients that join lists by `index`, as OpenAI's do, end up with the same list as in a whole completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Vec<RagStep>>,
    /// Passages that support the answer, in the order of its text; empty without an answer. In a stream, the last delta
    /// of the answer holds all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub citations: Option<Vec<Cited>>,
}

/// Steps on the way to an answer. In a stream each entry is also sent as an event `response.rag.step`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct RagTrace {
    /// Searches, observations, invalid actions and reached limits, in order.
    pub trace: Vec<RagStep>,
}

/// Entry of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RagStep {
    /// Index of the entry in the trace, from 0.
    pub index: usize,
    /// Event, identified by its `type`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub event: Event,
}
