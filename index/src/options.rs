//! Options for opening and searching an index.

use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};

use crate::error::IndexError;
use crate::mode::GraphVariant;

/// How an index is opened.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Read every file and hold it against its checksum. Without it only sizes are looked at: quicker for large
    /// indexes, and right only where nothing can have changed since they were last verified.
    pub verify: bool,
    /// How many searches of the vector graph run at once; more than that wait for each other.
    pub concurrency: usize,
    /// An index of at most so many passages is searched vector by vector, which is exact.
    pub exact_below: usize,
    /// The graph of an index of at most so many passages is walked as a whole, from every passage by its similarity,
    /// as in HippoRAG 2; a larger one only around the passages and phrases most like the query.
    pub walk_below: usize,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let concurrency = available_parallelism().map_or(1, usize::from);
        OpenOptions { verify: true, concurrency, exact_below: 16_384, walk_below: 65_536 }
    }
}

impl OpenOptions {
    /// For a snapshot that is read and never searched: no walk is prepared.
    pub(crate) fn unwalked() -> OpenOptions {
        OpenOptions { walk_below: 0, ..OpenOptions::default() }
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

/// How many things are looked for, and how they are weighed. None of these numbers could be recovered from TeaRAG.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KagOptions {
    /// Chunks (passages) in the graph, if that is not fewer than are to be returned. TeaRAG has at least 5 (§5.4.1).
    pub chunks: usize,
    /// Entities that are found for each key entity; the triples that name one of them are candidates.
    pub entities: usize,
    /// Triples in the graph, if that is not fewer than items are to be returned. TeaRAG has at least 5.
    pub triples: usize,
    /// Share of the mass that follows edges (α): small, and the question counts; large, and the structure does (§5.5.2).
    pub damping: f64,
    /// A triple is joined to the question only if its relevance is above this (eq. 2).
    pub threshold: f64,
    /// Steps of the PageRank; so many are made whatever happens.
    pub iterations: u32,
    /// How likeness becomes relevance.
    pub relevance: Relevance,
}

impl Default for KagOptions {
    fn default() -> KagOptions {
        KagOptions {
            chunks: 10,
            entities: 5,
            triples: 10,
            damping: 0.5,
            threshold: 0.5,
            iterations: 20,
            relevance: Relevance::default(),
        }
    }
}

/// How the likeness of a question to a chunk or triple, a cosine, becomes a relevance between 0 and 1 (eq. 1, 2).
/// TeaRAG takes the sigmoid of a reranker's score; there is no reranker here, and the plain sigmoid of a cosine would
/// lie between 0.27 and 0.73 for everything.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Relevance {
    /// `1 / (1 + exp(-slope · (cosine - centre)))`.
    Sigmoid {
        /// How sharply relevance rises.
        slope: f64,
        /// The cosine whose relevance is one half.
        centre: f64,
    },
    /// The cosine itself, 0 if it is negative. In braces: serde takes any field of a bare name without reading it.
    Cosine {},
}

impl Default for Relevance {
    /// A slope and a centre for sentence embedders such as MiniLM, which give unrelated texts cosines below 0.2 and
    /// answers ones above 0.5.
    fn default() -> Relevance {
        Relevance::Sigmoid { slope: 10.0, centre: 0.4 }
    }
}

impl Relevance {
    /// The relevance of what is like the question by this much.
    pub fn of(self, cosine: f32) -> f64 {
        let cosine = f64::from(cosine);
        match self {
            Relevance::Sigmoid { slope, centre } => 1.0 / (1.0 + (-slope * (cosine - centre)).exp()),
            Relevance::Cosine {} => cosine.clamp(0.0, 1.0),
        }
    }
}

impl KagOptions {
    /// Chunks, entities, triples and iterations, each at most.
    pub const MOST: usize = 1000;

    /// Whether every number in it is one that a search can use.
    ///
    /// # Errors
    /// What is wrong with the first that is not, to be read behind the name of the options.
    pub fn check(&self) -> Result<(), &'static str> {
        let finite = match self.relevance {
            Relevance::Sigmoid { slope, centre } => slope.is_finite() && centre.is_finite(),
            Relevance::Cosine {} => true,
        };
        let counts = [self.chunks, self.entities, self.triples, self.iterations as usize];
        if !(0.0..1.0).contains(&self.damping) {
            Err("needs a `damping` from 0 to below 1")
        } else if !(0.0..=1.0).contains(&self.threshold) {
            Err("needs a `threshold` from 0 to 1")
        } else if counts.iter().any(|count| !(1..=Self::MOST).contains(count)) {
            Err("needs `chunks`, `entities`, `triples` and `iterations` from 1 to 1000")
        } else if finite {
            Ok(())
        } else {
            Err("needs a finite `slope` and `centre`")
        }
    }
}
