//! How a passage was found, in the at most 16 flat values that OpenAI's interface has room for.

use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::{Hit, Mode, Step};

use super::item::FileSearchResult;

/// Longest text of an attribute in OpenAI's interface, in characters.
const LONGEST: usize = 512;

/// How a passage was found. What does not apply is left out.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Attributes {
    /// The search that found it: `passage`, `graph` or `hybrid`.
    #[schema(value_type = String)]
    pub mode: Mode,
    /// Its place in what was found, from 1.
    pub rank: usize,
    /// The score it was ranked by, as it is: a cosine, a BM25 score, a sum of reciprocal ranks, or the mass of a walk.
    pub score: f32,
    /// The turn of the policy that asked for it, from 1.
    pub turn: usize,
    /// The state of the index that was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<u64>,
    /// Whether the search had been made before in this response and was not made again.
    pub cached: bool,
    /// Its place in the BM25 list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bm25_rank: Option<usize>,
    /// Its BM25 score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bm25_score: Option<f32>,
    /// Its place in the dense list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_rank: Option<usize>,
    /// Its cosine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_score: Option<f32>,
    /// Its place in the graph's list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_rank: Option<usize>,
    /// Its personalised PageRank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_mass: Option<f64>,
    /// Edges of `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<usize>,
    /// The likeliest way there over the graph: the phrases it goes by, the seed first, with ` → ` between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A search, for the attributes of what it found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Searched {
    pub(super) turn: usize,
    pub(super) mode: Mode,
    pub(super) snapshot: Option<u64>,
    pub(super) cached: bool,
}

impl Searched {
    /// What was found, as the wire has it.
    pub(super) fn results(self, hits: &[Hit]) -> Vec<FileSearchResult> {
        let best = hits.iter().map(|hit| hit.score).fold(1.0, f32::max);
        hits.iter().map(|hit| self.result(hit, best)).collect()
    }

    fn result(self, hit: &Hit, best: f32) -> FileSearchResult {
        let graph = hit.path.graph.as_ref();
        let via = graph.map_or(&[][..], |arrival| &arrival.via);
        let attributes = Attributes {
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
        };
        FileSearchResult {
            file_id: hit.passage.id.clone(),
            filename: filename(&hit.passage.title, &hit.passage.id),
            score: (hit.score / best).clamp(0.0, 1.0),
            text: hit.passage.text.clone(),
            attributes,
        }
    }
}

/// The name a passage goes by: its title, or its id where it has none.
pub(super) fn filename(title: &str, id: &str) -> String {
    if title.is_empty() { id.to_owned() } else { title.to_owned() }
}

fn path(via: &[Step]) -> String {
    let phrases: Vec<&str> = via.iter().map(|step| step.phrase.as_str()).collect();
    phrases.join(" → ").chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use waymark_index::{Arrival, Passage, Path, Place};

    use super::*;

    fn hit(score: f32, path: Path) -> Hit {
        Hit {
            rank: 1,
            score,
            passage: Passage { id: "p".into(), title: String::new(), text: "t".into() },
            metadata: None,
            path,
        }
    }

    const SEARCHED: Searched = Searched { turn: 2, mode: Mode::Hybrid, snapshot: Some(7), cached: false };

    #[test]
    fn scores_lie_between_0_and_1_and_keep_their_order() {
        let scores = |scores: &[f32]| -> Vec<f32> {
            let hits: Vec<Hit> = scores.iter().map(|&score| hit(score, Path::default())).collect();
            SEARCHED.results(&hits).iter().map(|result| result.score).collect()
        };
        assert_eq!(scores(&[0.5, 0.25, -0.1]), [0.5, 0.25, 0.0]);
        assert_eq!(scores(&[8.0, 4.0]), [1.0, 0.5]);
        assert_eq!(scores(&[f32::NAN]).len(), 1);
    }

    #[test]
    fn attributes_stay_within_the_interface() {
        let place = Some(Place { rank: 3, score: 0.5 });
        let via = (0..3).map(|_| Step { phrase: "ü".repeat(300), weight: 1.0 }).collect();
        let graph = Some(Arrival { rank: 1, mass: 0.25, reset: 0.0, via });
        let results = SEARCHED.results(&[hit(0.5, Path { bm25: place, dense: place, graph })]);
        let value = serde_json::to_value(&results[0].attributes).unwrap();
        let fields = value.as_object().unwrap();
        assert!(fields.len() <= 16, "{fields:?}");
        for (name, value) in fields {
            assert!(name.len() <= 64);
            assert!(value.is_number() || value.is_boolean() || value.as_str().unwrap().chars().count() <= LONGEST);
        }
        assert_eq!((&value["hops"], &value["graph_mass"], &value["turn"]), (&3.into(), &0.25.into(), &2.into()));
        assert_eq!(results[0].filename, "p");
    }
}
