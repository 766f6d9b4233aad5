//! What is asked of an index and what it answers: queries, hits, and the path by which each hit was found.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// A question to an index.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// What to look for, as plain text: no character in it has a special meaning.
    pub text: String,
    /// Which search answers it.
    pub mode: Mode,
    /// How passages are ranked within passage search.
    pub ranking: Ranking,
    /// How many passages to return at most; at least 1.
    pub k: usize,
    /// When the searcher stops caring. Looked at between the stages of a search, not inside one.
    pub deadline: Option<Instant>,
}

impl Query {
    /// A query with the default ranking and no deadline.
    pub fn new(text: impl Into<String>, mode: Mode, k: usize) -> Query {
        Query { text: text.into(), mode, ranking: Ranking::default(), k, deadline: None }
    }

    /// The same query under another ranking.
    #[must_use]
    pub fn ranking(mut self, ranking: Ranking) -> Query {
        self.ranking = ranking;
        self
    }

    /// The same query, given up once `deadline` has passed.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Query {
        self.deadline = Some(deadline);
        self
    }
}

/// Which search answers a query. The names are those of RouteRAG's `[passage]`, `[graph]` and both together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Passages alone.
    #[default]
    Passage,
    /// Passages reached over the graph of phrases.
    Graph,
    /// Both lists, joined by reciprocal rank fusion.
    Hybrid,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Passage => "passage",
            Mode::Graph => "graph",
            Mode::Hybrid => "hybrid",
        })
    }
}

impl FromStr for Mode {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Mode, UnknownName> {
        match name {
            "passage" => Ok(Mode::Passage),
            "graph" => Ok(Mode::Graph),
            "hybrid" => Ok(Mode::Hybrid),
            _ => Err(UnknownName { name: name.to_owned(), known: "passage, graph, hybrid" }),
        }
    }
}

/// How passage search orders what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranking {
    /// By cosine between query and passage, as RouteRAG's `[passage]`.
    Dense,
    /// By BM25 over title and text. Needs no embedder.
    Bm25,
    /// By reciprocal rank fusion of the two.
    #[default]
    Fused,
}

impl Ranking {
    /// Whether this ranking reads the lexical index.
    pub fn wants_bm25(self) -> bool {
        self != Ranking::Dense
    }

    /// Whether this ranking reads the vectors, and so embeds the query.
    pub fn wants_dense(self) -> bool {
        self != Ranking::Bm25
    }
}

impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ranking::Dense => "dense",
            Ranking::Bm25 => "bm25",
            Ranking::Fused => "fused",
        })
    }
}

impl FromStr for Ranking {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Ranking, UnknownName> {
        match name {
            "dense" => Ok(Ranking::Dense),
            "bm25" => Ok(Ranking::Bm25),
            "fused" => Ok(Ranking::Fused),
            _ => Err(UnknownName { name: name.to_owned(), known: "dense, bm25, fused" }),
        }
    }
}

/// A mode or ranking was named that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not known here: use one of {known}")]
pub struct UnknownName {
    /// What was given.
    pub name: String,
    /// What would have been understood.
    pub known: &'static str,
}

/// What a search found, and in which state of the index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The snapshot of the index that was searched.
    pub snapshot: u64,
    /// The search that was made.
    pub mode: Mode,
    /// Best first.
    pub hits: Vec<Hit>,
}

/// One passage found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// Place in the list, from 1.
    pub rank: usize,
    /// What the list is ordered by: a cosine, a BM25 score, or a sum of reciprocal ranks, by [`Ranking`].
    pub score: f32,
    /// The passage itself.
    pub passage: Passage,
    /// How it was found.
    pub path: Path,
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
pub struct Path {
    /// Its place in the BM25 list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bm25: Option<Place>,
    /// Its place in the dense list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<Place>,
}

/// A place in a ranked list.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// From 1.
    pub rank: usize,
    /// In the units of that list: BM25, or cosine.
    pub score: f32,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn evidence_survives_json() {
        let evidence = Evidence {
            snapshot: 7,
            mode: Mode::Passage,
            hits: vec![Hit {
                rank: 1,
                score: 0.5,
                passage: Passage { id: "a".into(), title: "A \"quoted\" title".into(), text: "Zürich\n".into() },
                path: Path { bm25: Some(Place { rank: 2, score: 3.25 }), dense: None },
            }],
        };
        let json = serde_json::to_string(&evidence).unwrap();
        assert!(json.contains(r#""path":{"bm25":{"rank":2,"score":3.25}}"#), "{json}");
        assert_eq!(serde_json::from_str::<Evidence>(&json).unwrap(), evidence);
    }

    #[test]
    fn names_read_back_as_they_are_shown() {
        for mode in [Mode::Passage, Mode::Graph, Mode::Hybrid] {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
        }
        for ranking in [Ranking::Dense, Ranking::Bm25, Ranking::Fused] {
            assert_eq!(ranking.to_string().parse::<Ranking>().unwrap(), ranking);
            assert_eq!(serde_json::to_value(ranking).unwrap(), ranking.to_string());
        }
        let error = "pasage".parse::<Mode>().unwrap_err().to_string();
        assert!(error.contains("pasage") && error.contains("passage, graph, hybrid"), "{error}");
    }
}
