//! Retrieval settings of a policy or a protocol.

use serde::{Deserialize, Serialize};
use waymark_index::{ENTITIES, GraphVariant, KagOptions, Mode, Query, Ranking, TRIPLES};

#[cfg(doc)]
use super::search::MAX_K;

/// Retrieval settings of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retrieval {
    /// Mode of queries that name none: `passage`, `graph` or `hybrid`, or `triples` or `kag` if the protocol shows
    /// them.
    pub mode: Mode,
    /// Ranking of passages within passage search. `None` keeps the protocol's, or else the default of the query's mode.
    pub ranking: Option<Ranking>,
    /// Passages per search, at most [`MAX_K`]. In the mode `kag`, passages and triples together.
    pub k: usize,
    /// Triples per search, for protocols that show them.
    pub triples: usize,
    /// Variant of the graph search: `route_rag`, `hippo_rag` or `graph_r1`.
    pub graph: GraphVariant,
    /// Format of evidence.
    pub format: Format,
    /// Minimum number of searches before a guided policy may answer, because an untrained one tends to answer without
    /// evidence.
    pub least_searches: usize,
    /// Options of the joint ranking of passages and triples, in the mode `kag`. Missing fields have their defaults.
    pub kag: KagOptions,
}

impl Default for Retrieval {
    /// Returns three passages per search, as in RouteRAG and Search-R1.
    fn default() -> Self {
        Retrieval {
            mode: Mode::Passage,
            ranking: None,
            k: 3,
            triples: TRIPLES,
            graph: GraphVariant::default(),
            format: Format::default(),
            least_searches: 1,
            kag: KagOptions::default(),
        }
    }
}

impl Retrieval {
    /// Returns the query for `text` in `mode`, about the first of `entities` where the mode uses them. Queries ask for
    /// explanations, so that trajectories contain the path to every passage.
    pub(super) fn query(&self, text: impl Into<String>, entities: &[String], mode: Mode) -> Query {
        let graph = self.graph.into();
        let ranking = self.ranking.unwrap_or(mode.ranking());
        let entities = entities.iter().take(ENTITIES).cloned().collect();
        let triples = self.triples;
        let kag = self.kag;
        Query { ranking, triples, graph, entities, kag, explain: true, ..Query::new(text, mode, self.k) }
    }
}

/// Format of evidence: one of the reference's two renderings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Training format: stripped, and cut on the right if too long, closing tag included. A change of speaker is never
    /// cut.
    Training,
    /// Evaluation format. The reference does not cut there; if the budget requires it, passages are cut and the closing
    /// tag stays.
    #[default]
    Evaluation,
}
