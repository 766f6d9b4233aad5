//! Modes, rankings and graph variants of a search, with their names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Kind of search. The first three are RouteRAG's `[passage]`, `[graph]` and both together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Passages only, by BM25 and vectors.
    #[default]
    Passage,
    /// Passages reached over the graph of phrases.
    Graph,
    /// The lists of `Passage` and `Graph`, joined by reciprocal rank fusion.
    Hybrid,
    /// Passages reached over the graph, with the triples that led to them (GraphRAG-R1).
    Triples,
    /// Passages and triples of a knowledge association graph, ranked together (TeaRAG).
    Kag,
    /// Facts of a hypergraph of entities and facts, with the passages that state them (Graph-R1, PathRouter).
    Hypergraph,
}

impl Mode {
    /// All modes, in display order.
    pub const ALL: [Mode; 6] = [Mode::Passage, Mode::Graph, Mode::Hybrid, Mode::Triples, Mode::Kag, Mode::Hypergraph];

    /// Modes whose passages are reranked on request. [`Mode::Kag`] uses the reranker's scores as edge weights of its
    /// walk.
    pub(crate) const RERANKED: [Mode; 3] = [Mode::Passage, Mode::Graph, Mode::Hybrid];

    /// Default ranking of passages in this mode: fused in passage search; dense in every mode that searches the graph,
    /// as in RouteRAG's `[graph][passage]` (§3.1.2).
    pub fn ranking(self) -> Ranking {
        if self == Mode::Passage { Ranking::Fused } else { Ranking::Dense }
    }

    /// Default ranking of passages beside a variant of graph search: [`Mode::ranking`], but fused in the hybrid mode of
    /// [`GraphVariant::Waymark`].
    pub fn ranking_beside(self, variant: GraphVariant) -> Ranking {
        match (self, variant) {
            (Mode::Hybrid, GraphVariant::Waymark) => Ranking::Fused,
            _ => self.ranking(),
        }
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
            Mode::Hypergraph => "hypergraph",
        })
    }
}

impl FromStr for Mode {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Mode, UnknownName> {
        let unknown =
            || UnknownName { name: name.to_owned(), known: "passage, graph, hybrid, triples, kag, hypergraph" };
        Mode::ALL.into_iter().find(|mode| mode.to_string() == name).ok_or_else(unknown)
    }
}

/// Order of passage search results. [`Mode::ranking`] is the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranking {
    /// Cosine between query and passage, as in RouteRAG's `[passage]`.
    Dense,
    /// BM25 over title and text. Needs no embedder.
    Bm25,
    /// Reciprocal rank fusion of the dense and the BM25 list.
    Fused,
}

impl Ranking {
    /// Returns `true` if this ranking reads the lexical index.
    pub fn wants_bm25(self) -> bool {
        self != Ranking::Dense
    }

    /// Returns `true` if this ranking reads the vectors and thus embeds the query.
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

/// Graph search: a published one to reproduce, or Waymark's own. The `search::graph` and `graph_ranking` modules
/// document the differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphVariant {
    /// RouteRAG's fork of HippoRAG 2.
    #[default]
    RouteRag,
    /// HippoRAG 2 itself.
    HippoRag,
    /// GraphRAG-R1's fork, which follows RouteRAG's but links twenty facts. Also read under its earlier name,
    /// `graph_r1`.
    #[serde(rename = "graphrag_r1", alias = "graph_r1")]
    GraphRagR1,
    /// Waymark's own: the walk also starts from the phrases that the query names, from the passages to which their
    /// facts lead and from those that share its words, and [`Mode::Hybrid`] weighs the graph's list more than the other
    /// one.
    Waymark,
}

impl GraphVariant {
    /// All variants, in display order.
    pub const ALL: [GraphVariant; 4] =
        [GraphVariant::RouteRag, GraphVariant::HippoRag, GraphVariant::GraphRagR1, GraphVariant::Waymark];
}

impl fmt::Display for GraphVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GraphVariant::RouteRag => "route_rag",
            GraphVariant::HippoRag => "hippo_rag",
            GraphVariant::GraphRagR1 => "graphrag_r1",
            GraphVariant::Waymark => "waymark",
        })
    }
}

impl FromStr for GraphVariant {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<GraphVariant, UnknownName> {
        match name {
            "route_rag" => Ok(GraphVariant::RouteRag),
            "hippo_rag" => Ok(GraphVariant::HippoRag),
            "graphrag_r1" | "graph_r1" => Ok(GraphVariant::GraphRagR1),
            "waymark" => Ok(GraphVariant::Waymark),
            _ => Err(UnknownName { name: name.to_owned(), known: "route_rag, hippo_rag, graphrag_r1, waymark" }),
        }
    }
}

/// Error for an unknown name of a mode, ranking or variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown name {name:?}: expected one of {known}")]
pub struct UnknownName {
    /// The unknown name.
    pub name: String,
    /// Known names, comma-separated.
    pub known: &'static str,
}
