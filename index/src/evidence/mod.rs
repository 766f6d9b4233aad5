//! Results of a search: passages and triples, with the rank each had in the lists that found it.

mod budget;
mod kag_trace;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::mode::{GraphVariant, Mode};

pub(crate) use budget::EvidenceBudget;
pub use kag_trace::{KagChunk, KagTrace, KagTriple, KeyEntity, LinkedPhrase};

/// Result of a search, with the snapshot that was searched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Number of the searched snapshot.
    pub snapshot: u64,
    /// Mode of the search.
    pub mode: Mode,
    /// Passages, best first.
    pub hits: Vec<Hit>,
    /// Triples, best first, in the modes that return any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triples: Vec<TripleHit>,
    /// Trace of the graph search, in the modes that search the graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walk: Option<GraphTrace>,
    /// Trace of the association graph, in [`Mode::Kag`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub association: Option<KagTrace>,
    /// Number of passages and triples left out because of [`Query::bytes`](crate::Query). They rank after all others.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Evidence {
    /// Evidence with passages only.
    pub fn of(snapshot: u64, mode: Mode, hits: Vec<Hit>) -> Evidence {
        Evidence { snapshot, mode, hits, triples: Vec::new(), walk: None, association: None, left_out: 0 }
    }
}

/// Passage found by a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hit {
    /// Rank from 1. In modes that rank triples together with passages, both share one sequence of ranks.
    pub rank: usize,
    /// Score that orders the list: a cosine, a BM25 score, a sum of reciprocal ranks, a PageRank mass, or the
    /// relevance that a reranker found.
    pub score: f32,
    /// The passage itself.
    pub passage: Passage,
    /// Metadata of the document. `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<Map<String, Value>>,
    /// Ranks of the passage in the lists that found it.
    pub path: HitPath,
}

/// Triple found by a search, in normalized words; in the modes `kag` and `hypergraph`, in the words of the first passage
/// that states the triple.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TripleHit {
    /// Rank from 1. In modes that rank triples together with passages, both share one sequence of ranks.
    pub rank: usize,
    /// Score that orders the list.
    pub score: f32,
    /// Subject of the triple.
    pub subject: String,
    /// Relation between subject and object.
    pub relation: String,
    /// Object of the triple.
    pub object: String,
    /// IDs of the first ten passages that state the triple, in corpus order.
    pub passages: Vec<String>,
}

/// Stored document without its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Passage {
    /// ID from the corpus.
    pub id: String,
    /// Title; may be empty.
    pub title: String,
    /// Text of the passage.
    pub text: String,
}

/// Rank of a passage in each list that contains it. A field is `None` if its list does not.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = EvidencePath))]
pub struct HitPath {
    /// Rank in the BM25 list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bm25: Option<HitRank>,
    /// Rank in the dense list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<HitRank>,
    /// Rank in the list of the graph search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphRank>,
    /// Rank before the reranker reordered the list, and the reranker's score. Absent if the search did not rerank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerank: Option<RerankRank>,
}

/// Rank of a passage among the candidates of a reranker, with the reranker's score.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RerankedPlace))]
pub struct RerankRank {
    /// Rank among the candidates, from 1, before they were reranked.
    pub rank: usize,
    /// Score among the candidates.
    pub score: f32,
    /// Relevance from 0 to 1: the score of the result.
    pub relevance: f32,
    /// Score of the reranker before it was mapped to \[0, 1\], which orders the results. Absent if the reranker does not
    /// tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit: Option<f32>,
}

/// Rank and score of a passage in one list.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Place))]
pub struct HitRank {
    /// Rank from 1.
    pub rank: usize,
    /// Score in the units of the list: BM25 or cosine.
    pub score: f32,
}

/// Rank of a passage in the graph search, with its PageRank mass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Arrival))]
pub struct GraphRank {
    /// Rank in the graph's list, from 1.
    pub rank: usize,
    /// Personalized PageRank of the passage, with an error of up to `missing` of the walk.
    pub mass: f64,
    /// Weight of the passage in the reset vector, before that vector is scaled to sum 1.
    pub reset: f64,
    /// Likeliest path from a seed phrase to the passage, seed first. Absent if no path has at most three edges. Episodes
    /// always ask for the path, other searches with `explain`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<PathEdge>>))]
    pub via: Vec<PathEdge>,
}

/// Edge of a path through the graph, from a phrase to the next phrase or to the passage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Step))]
pub struct PathEdge {
    /// Phrase at the start of the edge.
    pub phrase: String,
    /// Weight of the edge. Parallel edges are summed.
    pub weight: f32,
}

/// Record of a graph search: the facts linked to the query, the seed phrases, and the parameters of the walk. Each hit
/// carries its own rank in the walk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Walk))]
pub struct GraphTrace {
    /// Variant of the graph search: `route_rag`, `hippo_rag`, `graphrag_r1` or `waymark`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub variant: GraphVariant,
    /// Probability of following an edge instead of restarting.
    pub damping: f64,
    /// Factor of the passages' own similarity in the reset vector.
    pub passage_weight: f64,
    /// Facts most similar to the query, best first, including those that the filter dropped.
    pub facts: Vec<SeedFact>,
    /// Indices into `facts` that the filter kept, in the filter's order and with its repetitions. Absent without a
    /// filter; all facts are then followed in their own order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<usize>>))]
    pub kept: Vec<usize>,
    /// Phrases that the walk started from, by descending linking score.
    pub phrases: Vec<SeedPhrase>,
    /// If `true`, no fact was left to follow, so passages are ranked by their own similarity.
    pub fallback: bool,
    /// If `true`, the index is too large for walks over the whole graph and the search was approximate: the walk stayed
    /// near its start, at most 200 passages had a weight of their own (with `waymark`, also up to 200 by their words,
    /// and those of related titles), and similarities were scaled by a sample of the passages.
    pub local: bool,
    /// Upper bound on the mass missing from the walk, summed over all nodes, apart from rounding in single precision. 0
    /// if there was no walk.
    pub missing: f64,
}

/// Fact linked to a query, in normalized words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeedFact {
    /// Subject of the fact.
    pub subject: String,
    /// Relation between subject and object.
    pub relation: String,
    /// Object of the fact.
    pub object: String,
    /// Cosine between the query and the fact.
    pub similarity: f32,
    /// `similarity` scaled to [0, 1] over all facts of the index.
    pub score: f32,
    /// If `true`, the filter kept the fact. Always `true` without a filter.
    pub kept: bool,
}

/// Phrase that a walk started from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeedPhrase {
    /// Normalized text of the phrase.
    pub phrase: String,
    /// Number of passages that state a triple with the phrase.
    pub passages: usize,
    /// Linking score, by which the list of seed phrases is cut off.
    pub linking: f64,
    /// Weight in the reset vector, before that vector is scaled to sum 1.
    pub weight: f64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn evidence_survives_json() {
        let path = HitPath { bm25: Some(HitRank { rank: 2, score: 3.25 }), ..HitPath::default() };
        let passage = Passage { id: "a".into(), title: "A \"quoted\" title".into(), text: "Zürich\n".into() };
        let evidence = Evidence::of(7, Mode::Passage, vec![Hit { rank: 1, score: 0.5, passage, metadata: None, path }]);
        let json = serde_json::to_string(&evidence).unwrap();
        assert!(json.contains(r#""path":{"bm25":{"rank":2,"score":3.25}}"#), "{json}");
        assert_eq!(serde_json::from_str::<Evidence>(&json).unwrap(), evidence);
    }
}
