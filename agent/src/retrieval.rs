//! Retrieval settings of a policy or a protocol.

use serde::{Deserialize, Serialize};
use waymark_index::{ENTITIES, Mode, Query, SearchFields, SearchOptions, SearchScope};

/// Retrieval settings of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Retrieval {
    /// Options of every search. `mode` is that of queries that name none; `ranking`, if set, applies in every mode.
    pub search: SearchOptions,
    /// Format of evidence.
    pub format: Format,
    /// Minimum number of searches before a guided policy may answer, because an untrained one tends to answer without
    /// evidence.
    pub least_searches: usize,
    /// Treatment of evidence that the policy withdraws.
    pub backtrack: Backtrack,
}

/// Treatment of the evidence of a search that the policy withdraws ([`Action::Backtrack`](crate::Action::Backtrack)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backtrack {
    /// The evidence stays in sight, and the reply says that it no longer counts.
    #[default]
    Mark,
    /// The policy goes on without the evidence in sight, after the same reply. The trajectory keeps the tokens; see
    /// [`HiddenEvidence`](crate::HiddenEvidence).
    Remove,
}

/// Fields of `[retrieval]` in a policy's file, next to its search options. `None` keeps the protocol's setting.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RetrievalFields {
    pub(super) format: Option<Format>,
    pub(super) least_searches: Option<usize>,
    pub(super) backtrack: Option<Backtrack>,
}

impl SearchFields for RetrievalFields {
    const SCOPE: SearchScope = SearchScope::Policy;
}

impl Default for Retrieval {
    /// Returns three passages per search, as in RouteRAG and Search-R1.
    fn default() -> Self {
        Retrieval::with(SearchOptions::default())
    }
}

impl Retrieval {
    /// Returns the default settings with these search options.
    pub fn with(search: SearchOptions) -> Retrieval {
        let default = SearchOptions { k: Some(3), ..SearchOptions::default() };
        Retrieval {
            search: search.or(&default),
            format: Format::default(),
            least_searches: 1,
            backtrack: Backtrack::default(),
        }
    }

    /// Returns the query for `text` in `mode`, with at most the first `ENTITIES` of `entities`. Queries ask for
    /// explanations, so that trajectories contain the path to every passage.
    pub(super) fn query(&self, text: impl Into<String>, entities: &[String], mode: Mode) -> Query {
        let entities = Some(entities.iter().take(ENTITIES).cloned().collect());
        let of_query = SearchOptions { mode: Some(mode), entities, explain: Some(true), ..SearchOptions::default() };
        of_query.or(&self.search).query(text)
    }
}

/// Format of evidence: one of the reference's two renderings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Training format: stripped. Protocols whose reference does so cut it on the right if it is too long, closing tag
    /// included; the others shorten its passages.
    Training,
    /// Evaluation format. The reference does not cut there; if the budget requires it, passages are cut and the closing
    /// tag stays.
    #[default]
    Evaluation,
}
