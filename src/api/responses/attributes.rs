//! Attributes of search results: how a passage was found, and its document's metadata, in at most 16 flat values as
//! OpenAI's interface allows.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use waymark_index::{Hit, Mode, PathEdge};

use super::item::FileSearchResult;
use crate::api::search_results::{self, MAX_ATTRIBUTES, MAX_TEXT_CHARS, file_id, filename_of};

/// Names of the attributes that describe how a passage was found.
const OWN: [&str; 14] = [
    "mode",
    "rank",
    "score",
    "turn",
    "snapshot",
    "cached",
    "bm25_rank",
    "bm25_score",
    "dense_rank",
    "dense_score",
    "graph_rank",
    "graph_mass",
    "hops",
    "path",
];

/// Attributes of a search result. Those that do not apply are absent. The remaining room, up to 16 attributes, is
/// filled with texts, numbers and booleans of the document's metadata, under their own names unless these collide.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Attributes {
    /// Kind of search that found the passage: `passage`, `graph` or `hybrid`.
    #[schema(value_type = String)]
    pub mode: Mode,
    /// Rank in the search results, from 1.
    pub rank: usize,
    /// Raw score of the ranking: a cosine similarity, a BM25 score, a sum of reciprocal ranks, a PageRank mass, or
    /// the relevance that a reranker found.
    pub score: f32,
    /// Turn of the policy that searched, from 1.
    pub turn: usize,
    /// Snapshot of the index that was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<u64>,
    /// If `true`, the results come from an identical earlier search of this response.
    pub cached: bool,
    /// Rank in the BM25 list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bm25_rank: Option<usize>,
    /// BM25 score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bm25_score: Option<f32>,
    /// Rank in the dense list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_rank: Option<usize>,
    /// Cosine similarity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_score: Option<f32>,
    /// Rank in the graph search's list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_rank: Option<usize>,
    /// Personalized PageRank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_mass: Option<f64>,
    /// Number of edges in `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<usize>,
    /// Most likely path to the passage in the graph: phrases from the seed on, joined by ` → `.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Metadata of the document, as far as there is room.
    #[serde(flatten)]
    #[schema(ignore)]
    pub metadata: Map<String, Value>,
}

/// Search whose results are described.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchOrigin {
    pub(super) turn: usize,
    pub(super) mode: Mode,
    pub(super) snapshot: Option<u64>,
    pub(super) cached: bool,
}

impl SearchOrigin {
    /// Converts passages to results of the wire format.
    pub(super) fn results(self, hits: &[Hit]) -> Vec<FileSearchResult> {
        let scale = search_results::scale(hits);
        hits.iter().map(|hit| self.result(hit, scale(hit.score))).collect()
    }

    fn result(self, hit: &Hit, score: f32) -> FileSearchResult {
        let graph = hit.path.graph.as_ref();
        let via = graph.map_or(&[][..], |arrival| &arrival.via);
        let mut attributes = Attributes {
            mode: self.mode,
            rank: hit.rank,
            score: hit.score,
            turn: self.turn,
            snapshot: self.snapshot,
            cached: self.cached,
            bm25_rank: hit.path.bm25.map(|place| place.rank),
            bm25_score: hit.path.bm25.map(|place| place.score),
            dense_rank: hit.path.dense.map(|place| place.rank),
            dense_score: hit.path.dense.map(|place| place.score),
            graph_rank: graph.map(|arrival| arrival.rank),
            graph_mass: graph.map(|arrival| arrival.mass),
            hops: (!via.is_empty()).then_some(via.len()),
            path: (!via.is_empty()).then(|| path(via)),
            metadata: Map::new(),
        };
        // Comes last, because its room depends on the other attributes.
        attributes.metadata = attributes.extra_metadata(hit);
        FileSearchResult {
            file_id: file_id(&hit.passage.id).to_owned(),
            filename: filename_of(hit),
            score,
            text: hit.passage.text.clone(),
            attributes,
        }
    }
}

impl Attributes {
    /// Returns the metadata of the document that fits next to these attributes.
    fn extra_metadata(&self, hit: &Hit) -> Map<String, Value> {
        let present = [
            self.snapshot.is_some(),
            self.bm25_rank.is_some(),
            self.bm25_score.is_some(),
            self.dense_rank.is_some(),
            self.dense_score.is_some(),
            self.graph_rank.is_some(),
            self.graph_mass.is_some(),
            self.hops.is_some(),
            self.path.is_some(),
        ];
        // Absent attributes are not sent, so they leave their room to others.
        let own = OWN.len() - present.iter().filter(|present| !**present).count();
        let others =
            search_results::attributes(hit.metadata.as_ref()).filter(|(name, _)| !OWN.contains(&name.as_str()));
        others.take(MAX_ATTRIBUTES - own).collect()
    }
}

fn path(via: &[PathEdge]) -> String {
    let phrases: Vec<&str> = via.iter().map(|step| step.phrase.as_str()).collect();
    // OpenAI's interface bounds the length of an attribute.
    phrases.join(" → ").chars().take(MAX_TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use waymark_index::{GraphRank, HitPath, HitRank, Passage};

    use super::*;

    fn hit(score: f32, path: HitPath) -> Hit {
        Hit {
            rank: 1,
            score,
            passage: Passage { id: "p".into(), title: String::new(), text: "t".into() },
            metadata: None,
            path,
        }
    }

    const SEARCHED: SearchOrigin = SearchOrigin { turn: 2, mode: Mode::Hybrid, snapshot: Some(7), cached: false };

    #[test]
    fn scores_lie_between_0_and_1_and_keep_their_order() {
        let scores = |scores: &[f32]| -> Vec<f32> {
            let hits: Vec<Hit> = scores.iter().map(|&score| hit(score, HitPath::default())).collect();
            SEARCHED.results(&hits).iter().map(|result| result.score).collect()
        };
        assert_eq!(scores(&[0.5, 0.25, -0.1]), [0.5, 0.25, 0.0]);
        assert_eq!(scores(&[8.0, 4.0]), [1.0, 0.5]);
        assert_eq!(scores(&[f32::NAN]).len(), 1);
    }

    #[test]
    fn attributes_stay_within_the_interface() {
        let place = Some(HitRank { rank: 3, score: 0.5 });
        let via = (0..3).map(|_| PathEdge { phrase: "ü".repeat(300), weight: 1.0 }).collect();
        let graph = Some(GraphRank { rank: 1, mass: 0.25, reset: 0.0, via });
        let many = (0..20).map(|number| (format!("key{number}"), Value::from(number)));
        let metadata = [("mode".to_owned(), Value::from("own")), ("tags".to_owned(), Value::from(vec!["a"]))];
        let metadata = Some(metadata.into_iter().chain(many).collect());
        let hit = Hit { metadata, ..hit(0.5, HitPath { bm25: place, dense: place, graph, rerank: None }) };
        let results = SEARCHED.results(&[hit]);
        let value = serde_json::to_value(&results[0].attributes).unwrap();
        assert_eq!((&value["mode"], &value["key1"], value.get("key2")), (&"hybrid".into(), &1.into(), None));
        let fields = value.as_object().unwrap();
        assert!(fields.len() <= 16, "{fields:?}");
        for (name, value) in fields {
            assert!(name.len() <= 64);
            assert!(
                value.is_number() || value.is_boolean() || value.as_str().unwrap().chars().count() <= MAX_TEXT_CHARS
            );
        }
        assert_eq!((&value["hops"], &value["graph_mass"], &value["turn"]), (&3.into(), &0.25.into(), &2.into()));
        assert_eq!(results[0].filename, "p");
    }
}
