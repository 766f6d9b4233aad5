//! Modes, rankings and graph variants of a search, with their names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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

/// A mode, ranking or variant was named that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not known here: use one of {known}")]
pub struct UnknownName {
    /// What was given.
    pub name: String,
    /// What would have been understood.
    pub known: &'static str,
}
