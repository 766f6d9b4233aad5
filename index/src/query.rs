//! Query to an index.

use std::sync::Arc;
use std::time::Instant;

use crate::condition::Condition;
use crate::embed::QueryContext;
use crate::error::IndexError;
use crate::invalid_option::InvalidOption;
use crate::mode::{Mode, Ranking};
use crate::options::{GraphOptions, KagOptions, RerankOptions};

/// Query to an index.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// Search text. No character has a special meaning.
    pub text: String,
    /// Search mode.
    pub mode: Mode,
    /// Ranking of passages in [`Mode::Passage`], and in the passage part of [`Mode::Hybrid`].
    pub ranking: Ranking,
    /// If `true`, scores of [`Ranking::Dense`] are scaled to \[0, 1\] over all passages of the index instead of being
    /// cosines, as in HippoRAG 2 and RouteRAG (`min_max_normalize`). Costs a scan of every passage.
    pub scaled: bool,
    /// Maximum number of passages to return; at least 1.
    pub k: usize,
    /// Maximum number of triples to return in [`Mode::Triples`], and of facts in [`Mode::Hypergraph`].
    pub triples: usize,
    /// Options of the graph search.
    pub graph: GraphOptions,
    /// Names of the entities that the query is about, for [`Mode::Kag`]; at most [`ENTITIES`]. If empty, the search
    /// takes entities from the text.
    pub entities: Vec<String>,
    /// Options of [`Mode::Kag`].
    pub kag: KagOptions,
    /// Reranking of the candidates that the search finds.
    pub rerank: RerankOptions,
    /// Condition on the metadata of the documents to find; [`Index::search`](crate::Index::search) explains its effect.
    /// `None` allows all.
    pub only: Option<Arc<Condition>>,
    /// If `true`, the evidence contains the likeliest path to each passage through the graph
    /// ([`GraphRank::via`](crate::GraphRank)), which takes extra time.
    pub explain: bool,
    /// Time at which to abandon the search. Checked between the stages of a search, not within one. `None` never
    /// abandons it.
    pub deadline: Option<Instant>,
    /// Maximum size in bytes of the passages and triples to read. The last ones are left out, and
    /// [`Evidence::left_out`](crate::Evidence) counts them.
    pub bytes: usize,
    /// Separates callers that must not notice each other's queries: vectors in an embedder's cache are shared only by
    /// queries of the same salt. 0 is the salt of all callers without one.
    pub cache_salt: u64,
}

/// Number of triples that [`Mode::Triples`] returns by default, as in GraphRAG-R1 §4.3.3 (its code shows 5), and number
/// of facts of [`Mode::Hypergraph`], as in Graph-R1 (`script_api.py`).
pub const TRIPLES: usize = 10;

/// Maximum number of entities in a query. Each of them is compared with all phrases of the graph.
pub const ENTITIES: usize = 8;

impl Query {
    /// Query with the mode's default ranking ([`Mode::ranking`]), default graph options, no explanation, no deadline
    /// and any number of bytes.
    pub fn new(text: impl Into<String>, mode: Mode, k: usize) -> Query {
        Query {
            text: text.into(),
            mode,
            ranking: mode.ranking(),
            scaled: false,
            k,
            triples: TRIPLES,
            graph: GraphOptions::default(),
            entities: Vec::new(),
            kag: KagOptions::default(),
            rerank: RerankOptions::default(),
            only: None,
            explain: false,
            deadline: None,
            bytes: usize::MAX,
            cache_salt: 0,
        }
    }

    /// Checks that every number is in range.
    ///
    /// # Errors
    /// The first field that is out of range, by the name of its [search option](crate::SearchOptions).
    pub fn check(&self) -> Result<(), InvalidOption> {
        if self.k == 0 {
            return Err(InvalidOption::new("k", self.k, "must be at least 1"));
        }
        if self.entities.len() > ENTITIES {
            return Err(InvalidOption::new("entities", self.entities.len(), "must hold at most 8 names"));
        }
        self.kag.check()?;
        self.rerank.check()?;
        if let Some(only) = &self.only {
            only.check().map_err(|expected| InvalidOption::new("filters", "", expected))?;
        }
        self.graph.check()
    }

    /// Returns `true` if the search embeds the text.
    pub(crate) fn wants_vector(&self) -> bool {
        self.mode != Mode::Passage || self.ranking.wants_dense()
    }

    /// Sets the ranking.
    #[must_use]
    pub fn ranking(mut self, ranking: Ranking) -> Query {
        self.ranking = ranking;
        self
    }

    /// Restricts the search to documents whose metadata satisfies `only`.
    #[must_use]
    pub fn only(mut self, only: Condition) -> Query {
        self.only = Some(Arc::new(only));
        self
    }

    /// Reranks the candidates.
    #[must_use]
    pub fn reranked(mut self) -> Query {
        self.rerank.wanted = Some(true);
        self
    }

    /// Requests the path to each passage.
    #[must_use]
    pub fn explained(mut self) -> Query {
        self.explain = true;
        self
    }

    /// Sets the maximum size in bytes of what the search reads.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Query {
        self.bytes = bytes;
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Query {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the salt of the cache of query vectors.
    #[must_use]
    pub fn cache_salt(mut self, salt: u64) -> Query {
        self.cache_salt = salt;
        self
    }

    /// Returns the context in which the texts of this query are embedded.
    pub(crate) fn embed_context(&self) -> QueryContext {
        QueryContext { cache_salt: self.cache_salt, deadline: self.deadline }
    }

    /// Fails if the deadline has passed before `stage`. Otherwise emits a trace event with the name of the stage.
    pub(crate) fn enter_stage(&self, stage: &'static str) -> Result<(), IndexError> {
        tracing::trace!(target: "waymark_index::search", stage);
        if self.is_late() { Err(IndexError::Deadline { stage }) } else { Ok(()) }
    }

    /// Returns `true` if the deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::mode::GraphVariant;

    #[test]
    fn names_read_back_as_they_are_shown() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
        }
        for ranking in [Ranking::Dense, Ranking::Bm25, Ranking::Fused] {
            assert_eq!(ranking.to_string().parse::<Ranking>().unwrap(), ranking);
            assert_eq!(serde_json::to_value(ranking).unwrap(), ranking.to_string());
        }
        for variant in GraphVariant::ALL {
            assert_eq!(variant.to_string().parse::<GraphVariant>().unwrap(), variant);
            assert_eq!(serde_json::to_value(variant).unwrap(), variant.to_string());
        }
        let error = "pasage".parse::<Mode>().unwrap_err().to_string();
        assert!(error.contains("pasage") && error.contains("passage, graph, hybrid"), "{error}");
    }

    #[test]
    fn each_mode_has_a_ranking_of_its_own() {
        for mode in Mode::ALL {
            let expected = if mode == Mode::Passage { Ranking::Fused } else { Ranking::Dense };
            assert_eq!(Query::new("x", mode, 1).ranking, expected, "{mode}");
        }
    }

    #[test]
    fn numbers_that_no_search_can_use_are_refused_by_name() {
        let query = |k, linking_top_k, damping, passage_weight| Query {
            graph: GraphOptions { linking_top_k, damping, passage_weight, ..GraphOptions::default() },
            ..Query::new("x", Mode::Graph, k)
        };
        for variant in GraphVariant::ALL {
            GraphOptions::from(variant).check().unwrap();
        }
        for (query, field) in [
            (query(0, 5, 0.5, 0.05), "k"),
            (query(1, 0, 0.5, 0.05), "graph.linking_top_k"),
            (query(1, 101, 0.5, 0.05), "graph.linking_top_k"),
            (query(1, 5, 1.0, 0.05), "graph.damping"),
            (query(1, 5, f64::NAN, 0.05), "graph.damping"),
            (query(1, 5, 0.5, -0.1), "graph.passage_weight"),
            (query(1, 5, 0.5, f64::INFINITY), "graph.passage_weight"),
        ] {
            assert_eq!(query.check().unwrap_err().name, field);
        }
        query(1, 100, 0.0, 1.0).check().unwrap();
    }
}
