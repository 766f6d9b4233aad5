//! What an index answers: passages and triples, and the path by which each was found.

mod kag_trace;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::mode::{GraphVariant, Mode};

pub use kag_trace::{KagChunk, KagTrace, KagTriple, KeyEntity, LinkedPhrase};

/// What a search found, and in which state of the index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The snapshot of the index that was searched.
    pub snapshot: u64,
    /// The search that was made.
    pub mode: Mode,
    /// Passages, best first.
    pub hits: Vec<Hit>,
    /// Triples, best first, in the modes that return any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triples: Vec<TripleHit>,
    /// How the graph was searched, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walk: Option<GraphTrace>,
    /// How passages and triples were ranked together, in [`Mode::Kag`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub association: Option<KagTrace>,
}

impl Evidence {
    /// Evidence of passages alone.
    pub fn of(snapshot: u64, mode: Mode, hits: Vec<Hit>) -> Evidence {
        Evidence { snapshot, mode, hits, triples: Vec::new(), walk: None, association: None }
    }
}

/// One passage found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// Place in the list, from 1. Where triples are ranked together with passages, places in the list of both.
    pub rank: usize,
    /// What the list is ordered by: a cosine, a BM25 score, a sum of reciprocal ranks, or the mass of a walk.
    pub score: f32,
    /// The passage itself.
    pub passage: Passage,
    /// What else its document says, where it says anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// How it was found.
    pub path: HitPath,
}

/// One triple found, in normalised words; in [`Mode::Kag`] in those of the first passage that states it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TripleHit {
    /// Place in the list, as for [`Hit::rank`].
    pub rank: usize,
    /// What the list is ordered by.
    pub score: f32,
    /// What the triple is about.
    pub subject: String,
    /// What it says of the two.
    pub relation: String,
    /// What the subject is related to.
    pub object: String,
    /// Ids of the passages that state it, in the order of the corpus; the first ten of them.
    pub passages: Vec<String>,
}

/// A passage as it is shown: the stored document without its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// The id that the corpus gave it.
    pub id: String,
    /// Its title; may be empty.
    pub title: String,
    /// Its text.
    pub text: String,
}

/// How a passage was found: its place in each list that held it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HitPath {
    /// Its place in the BM25 list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bm25: Option<HitRank>,
    /// Its place in the dense list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<HitRank>,
    /// Where the walk over the graph reached it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphRank>,
}

/// A place in a ranked list.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HitRank {
    /// From 1.
    pub rank: usize,
    /// In the units of that list: BM25, or cosine.
    pub score: f32,
}

/// What a walk over the graph brought to a passage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphRank {
    /// Place in the graph's list, from 1.
    pub rank: usize,
    /// Its share of the walk: its personalised PageRank, of which up to [`GraphTrace::missing`] is not known.
    pub mass: f64,
    /// Its own weight in the reset vector, before that is scaled to sum 1.
    pub reset: f64,
    /// The likeliest way there from a seed phrase, the seed first; empty where none is at most three edges long, or
    /// [`Query::explain`](crate::Query::explain) is not asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<PathEdge>,
}

/// One edge of a way over the graph: from a phrase to the next one, or at last to the passage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathEdge {
    /// The phrase the edge leaves.
    pub phrase: String,
    /// Weight of the edge, all parallel ones together.
    pub weight: f32,
}

/// How a graph search went: query → facts → phrases; where it arrived stands with each [`Hit`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphTrace {
    /// Whose search it was.
    pub variant: GraphVariant,
    /// Probability of following an edge.
    pub damping: f64,
    /// Weight of the passages' own similarity in the reset vector.
    pub passage_weight: f64,
    /// The facts most like the query, best first, those that a filter dropped included.
    pub facts: Vec<SeedFact>,
    /// Places in `facts`, from 0, that a filter kept, in its order and repeated as it repeats them. Empty without a
    /// filter: then all are followed, in theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<usize>,
    /// The phrases that the walk started from, by falling linking score.
    pub phrases: Vec<SeedPhrase>,
    /// Whether no fact was left, so that the passages are ranked by their own similarity.
    pub fallback: bool,
    /// Whether the index has more passages than [`OpenOptions::walk_below`](crate::OpenOptions): the walk stayed around
    /// where it started, no more than 200 passages had a weight of their own, and similarities of passages were scaled
    /// by a sample of them.
    pub local: bool,
    /// The most that is missing of the mass of the walk from the reset that it had, over all nodes together, but for
    /// single precision; 0 where there was no walk.
    pub missing: f64,
}

/// A fact that a query was linked to, in normalised words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeedFact {
    /// What the fact is about.
    pub subject: String,
    /// What it says of the two.
    pub relation: String,
    /// What the subject is related to.
    pub object: String,
    /// Cosine between the query and the fact.
    pub similarity: f32,
    /// The same, scaled to [0, 1] over all facts of the index.
    pub score: f32,
    /// Whether it was kept by the filter; always, where there is none.
    pub kept: bool,
}

/// A phrase that a walk started from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeedPhrase {
    /// The phrase, normalised.
    pub phrase: String,
    /// How many passages state a triple with it.
    pub passages: usize,
    /// What phrases are cut by.
    pub linking: f64,
    /// Its weight in the reset vector, before that is scaled to sum 1.
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
