//! What is asked of an index.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::error::IndexError;
use crate::kag::KagOptions;

/// A question to an index.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// What to look for, as plain text: no character in it has a special meaning.
    pub text: String,
    /// Which search answers it.
    pub mode: Mode,
    /// How passages are ranked within passage search: that of [`Mode::Passage`], or the part of it in [`Mode::Hybrid`].
    pub ranking: Ranking,
    /// Whether the scores of [`Ranking::Dense`] are scaled to \[0, 1\] over all passages of the index, as HippoRAG 2 and
    /// RouteRAG give them (`min_max_normalize`), and are no cosines. Costs a look at every passage.
    pub scaled: bool,
    /// How many passages to return at most; at least 1.
    pub k: usize,
    /// How many triples to return at most, in [`Mode::Triples`].
    pub triples: usize,
    /// How the graph is searched.
    pub graph: GraphOptions,
    /// Names that the query is about, for [`Mode::Kag`]: at most [`ENTITIES`]. Without any, those of its text are taken.
    pub entities: Vec<String>,
    /// How passages and triples are ranked together, in [`Mode::Kag`].
    pub kag: KagOptions,
    /// What the documents' metadata must say of the passages that are found. How it is searched is told at
    /// [`Index::search`](crate::Index::search).
    pub only: Option<Arc<Condition>>,
    /// Whether the evidence is to tell the likeliest way to each passage over the graph
    /// ([`Arrival::via`](crate::Arrival)), which has to be looked for.
    pub explain: bool,
    /// When the searcher stops caring. Looked at between the stages of a search, not inside one.
    pub deadline: Option<Instant>,
}

/// Triples that [`Mode::Triples`] returns: GraphRAG-R1 §4.3.3 (its code shows 5).
pub const TRIPLES: usize = 10;

/// Names that a query may be about at most. All phrases of the graph are looked at for each of them.
pub const ENTITIES: usize = 8;

impl Query {
    /// A query with the mode's own ranking ([`Mode::ranking`]), the default graph search, no explanation and no deadline.
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
            only: None,
            explain: false,
            deadline: None,
        }
    }

    /// Whether every number in it is one that a search can use.
    ///
    /// # Errors
    /// [`IndexError::BadQuery`] with the first field that is not.
    pub fn check(&self) -> Result<(), IndexError> {
        if self.k == 0 {
            return Err(IndexError::BadQuery { field: "k", message: "must be at least 1" });
        }
        if self.entities.len() > ENTITIES {
            return Err(IndexError::BadQuery { field: "entities", message: "must be 8 names at most" });
        }
        self.kag.check().map_err(|message| IndexError::BadQuery { field: "kag", message })?;
        if let Some(only) = &self.only {
            only.check().map_err(|message| IndexError::BadQuery { field: "only", message })?;
        }
        self.graph.check()
    }

    /// The same query under another ranking.
    #[must_use]
    pub fn ranking(mut self, ranking: Ranking) -> Query {
        self.ranking = ranking;
        self
    }

    /// The same query, for passages of documents whose metadata fits `only`.
    #[must_use]
    pub fn only(mut self, only: Condition) -> Query {
        self.only = Some(Arc::new(only));
        self
    }

    /// The same query, with the way to each passage told.
    #[must_use]
    pub fn explained(mut self) -> Query {
        self.explain = true;
        self
    }

    /// The same query, given up once `deadline` has passed.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Query {
        self.deadline = Some(deadline);
        self
    }
}

/// Which search answers a query. The first three are RouteRAG's `[passage]`, `[graph]` and both together.
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
    /// Passages reached over the graph, and the triples that led to them (GraphRAG-R1).
    Triples,
    /// Passages and triples of a knowledge association graph, ranked together (TeaRAG).
    Kag,
}

impl Mode {
    /// Every mode, as they are listed for people.
    pub const ALL: [Mode; 5] = [Mode::Passage, Mode::Graph, Mode::Hybrid, Mode::Triples, Mode::Kag];

    /// How passages are ranked where a query does not say: fused in passage search by itself; dense wherever a graph is
    /// searched, as RouteRAG's `[graph][passage]` has it (§3.1.2).
    pub fn ranking(self) -> Ranking {
        if self == Mode::Passage { Ranking::Fused } else { Ranking::Dense }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Passage => "passage",
            Mode::Graph => "graph",
            Mode::Hybrid => "hybrid",
            Mode::Triples => "triples",
            Mode::Kag => "kag",
        })
    }
}

impl FromStr for Mode {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Mode, UnknownName> {
        let unknown = || UnknownName { name: name.to_owned(), known: "passage, graph, hybrid, triples, kag" };
        Mode::ALL.into_iter().find(|mode| mode.to_string() == name).ok_or_else(unknown)
    }
}

/// How passage search orders what it finds. Which one by default is a matter of the mode: [`Mode::ranking`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranking {
    /// By cosine between query and passage, as RouteRAG's `[passage]`.
    Dense,
    /// By BM25 over title and text. Needs no embedder.
    Bm25,
    /// By reciprocal rank fusion of the two.
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

/// Which of the published graph searches is meant: they share everything but what `graph` documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphVariant {
    /// RouteRAG's fork of HippoRAG 2.
    #[default]
    RouteRag,
    /// HippoRAG 2 itself.
    HippoRag,
    /// The fork behind GraphRAG-R1: as RouteRAG's, from twenty facts.
    GraphR1,
}

impl GraphVariant {
    /// Every variant, as they are listed for people.
    pub const ALL: [GraphVariant; 3] = [GraphVariant::RouteRag, GraphVariant::HippoRag, GraphVariant::GraphR1];
}

impl fmt::Display for GraphVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GraphVariant::RouteRag => "route_rag",
            GraphVariant::HippoRag => "hippo_rag",
            GraphVariant::GraphR1 => "graph_r1",
        })
    }
}

impl FromStr for GraphVariant {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<GraphVariant, UnknownName> {
        let unknown = || UnknownName { name: name.to_owned(), known: "route_rag, hippo_rag, graph_r1" };
        GraphVariant::ALL.into_iter().find(|variant| variant.to_string() == name).ok_or_else(unknown)
    }
}

/// How the graph is searched.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GraphOptions {
    /// Whose search it is.
    pub variant: GraphVariant,
    /// Facts that are taken from the query, and phrases that the walk starts from: 5, or 20 for GraphRAG-R1.
    pub linking_top_k: usize,
    /// Probability of following an edge rather than starting again.
    pub damping: f64,
    /// Weight of the passages' own similarity in where the walk starts.
    pub passage_weight: f64,
}

impl GraphOptions {
    /// Facts that a query may be linked to at most.
    pub const MOST_LINKED: usize = 100;
    /// The largest damping: the nearer it is to 1, the longer a walk takes to settle.
    pub const MOST_DAMPING: f64 = 0.95;

    /// Whether every number is one that a walk can use.
    ///
    /// # Errors
    /// [`IndexError::BadQuery`] with the first field that is not.
    pub fn check(&self) -> Result<(), IndexError> {
        let refuse = |field, message| Err(IndexError::BadQuery { field, message });
        if !(1..=Self::MOST_LINKED).contains(&self.linking_top_k) {
            return refuse("linking_top_k", "must be from 1 to 100");
        }
        if !(0.0..=Self::MOST_DAMPING).contains(&self.damping) {
            return refuse("damping", "must be from 0 to 0.95");
        }
        if !(0.0..=1.0).contains(&self.passage_weight) {
            return refuse("passage_weight", "must be from 0 to 1");
        }
        Ok(())
    }
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        GraphVariant::default().into()
    }
}

impl From<GraphVariant> for GraphOptions {
    fn from(variant: GraphVariant) -> GraphOptions {
        let linking_top_k = if variant == GraphVariant::GraphR1 { 20 } else { 5 };
        GraphOptions { variant, linking_top_k, damping: 0.5, passage_weight: 0.05 }
    }
}

/// A mode, ranking or variant was named that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not known here: use one of {known}")]
pub struct UnknownName {
    /// What was given.
    pub name: String,
    /// What would have been understood.
    pub known: &'static str,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

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
            (query(1, 0, 0.5, 0.05), "linking_top_k"),
            (query(1, 101, 0.5, 0.05), "linking_top_k"),
            (query(1, 5, 1.0, 0.05), "damping"),
            (query(1, 5, f64::NAN, 0.05), "damping"),
            (query(1, 5, 0.5, -0.1), "passage_weight"),
            (query(1, 5, 0.5, f64::INFINITY), "passage_weight"),
        ] {
            let refused = query.check().unwrap_err();
            assert!(
                matches!(refused, IndexError::BadQuery { field: named, .. } if named == field),
                "{field}: {refused}"
            );
        }
        query(1, 100, 0.0, 1.0).check().unwrap();
    }
}
