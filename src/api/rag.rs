//! The `rag` extension of requests: search options, the trace of an episode, and the passages that support an answer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_agent::{Cited, EpisodeOptions, Event};
use waymark_engine::Priority;
use waymark_index::{SearchFields, SearchScope, WithSearch};

use super::error::ApiError;
use crate::keys::RequestPriority;

/// Options of an episode: search options, which override the policy's own, and others. The modes `triples`, `kag` and
/// `hypergraph` are for policies whose protocol can present their results.
pub type RagOptions = WithSearch<EpisodeFields>;

/// Options of an episode other than those of its searches.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(
    as = RagOptions,
    description = "Options of an episode: those of all its searches, over the policy's own, and others. The modes `triples`, `kag` and `hypergraph` need a policy whose protocol can present their results."
)]
#[serde(deny_unknown_fields)]
pub struct EpisodeFields {
    /// If `true`, searches and observations are returned under `rag`, next to the content.
    pub trace: Option<bool>,
    /// If `true`, a chat's answer ends with the passages that support it, under `rag`, next to its content. `/v1/agent`
    /// always returns them, and responses have them as annotations.
    pub citations: Option<bool>,
    /// Name of the index to search: `default`, the name of its directory, that of one of the server's other indexes, or the
    /// ID of a vector store of the caller's key. Defaults to the index of the policy.
    pub index: Option<String>,
    /// Limits that are tighter than the policy's own.
    pub budget: Option<BudgetOptions>,
    /// If `false`, no trace of the episode is kept (`/v1/traces`). Defaults to `true` if the server keeps traces.
    pub store: Option<bool>,
    /// If `true`, guided decoding enforces the protocol, for policies that were not trained for it. Defaults to the
    /// policy's setting.
    pub guided: Option<bool>,
    /// Priority of the request relative to others: at most that of the key, which is also the default.
    pub priority: Option<RequestPriority>,
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

impl SearchFields for EpisodeFields {
    const SCOPE: SearchScope = SearchScope::Episode;
}

/// Applies the options of a request to those of an episode.
///
/// # Errors
/// Names the field whose value is out of range.
pub(crate) fn apply(rag: &RagOptions, options: &mut EpisodeOptions) -> Result<(), ApiError> {
    let WithSearch { search, rest } = rag;
    let budget = rest.budget.clone().unwrap_or_default();
    if budget.seconds.is_some_and(|seconds| seconds <= 0.0) {
        return Err(ApiError::invalid("rag.budget.seconds", "`rag.budget.seconds` must be above 0"));
    }
    search.check().map_err(|invalid| {
        let param = format!("rag.{}", invalid.name);
        ApiError::invalid(&param, format!("`{param}` {}", invalid.reason()))
    })?;
    options.search = search.clone();
    options.guided = rest.guided;
    options.store = rest.store;
    options.priority = rest.priority.map(Priority::from);
    // Routes that always return citations have set this already.
    options.cites |= rest.citations == Some(true);
    options.turns = budget.turns;
    options.searches = budget.searches;
    options.environment_tokens = budget.environment_tokens;
    options.seconds = budget.seconds;
    Ok(())
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
