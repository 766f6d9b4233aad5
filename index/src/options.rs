//! Options for opening and searching an index.

use std::fmt::Display;
use std::str::FromStr;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};

use crate::invalid_option::InvalidOption;
use crate::mode::GraphVariant;

/// Maximum number of passages, and of triples, that requests and policies may ask for in one search.
pub const MAX_K: usize = 200;

/// Options for [`Index::open_with`](crate::Index::open_with).
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Verifies the checksum of every file. If `false`, only file sizes are checked: faster for large indexes, but safe
    /// only if nothing can have changed since the last verification.
    pub verify: bool,
    /// Maximum number of concurrent searches of the vector graph; further ones wait.
    pub concurrency: usize,
    /// Largest number of passages that is searched exactly, vector by vector. Larger indexes use the approximate vector
    /// graph.
    pub exact_below: usize,
    /// Minimum number of candidates that a search of the vector graph examines. More take longer and miss fewer of the
    /// nearest. Public for benchmarks; no flag sets it.
    #[doc(hidden)]
    pub candidates: usize,
    /// Largest number of passages for which PageRank covers the whole graph, starting from every passage by its
    /// similarity as in HippoRAG 2. Larger indexes use a local walk around the passages and phrases most similar to the
    /// query.
    pub walk_below: usize,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let concurrency = available_parallelism().map_or(1, usize::from);
        OpenOptions { verify: true, concurrency, exact_below: 16_384, candidates: 128, walk_below: 65_536 }
    }
}

impl OpenOptions {
    /// Options for a snapshot that is read but never searched: no PageRank solver is prepared.
    pub(crate) fn unwalked() -> OpenOptions {
        OpenOptions { walk_below: 0, ..OpenOptions::default() }
    }
}

/// Options of a graph search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GraphOptions {
    /// Graph search to run: that of a published system, or Waymark's own.
    pub variant: GraphVariant,
    /// Number of facts linked to the query, and of phrases that the walk starts from: 5, or 20 for GraphRAG-R1.
    pub linking_top_k: usize,
    /// Probability of following an edge instead of restarting.
    pub damping: f64,
    /// Factor of the passages' own similarity in the reset vector.
    pub passage_weight: f64,
}

impl GraphOptions {
    /// Maximum of `linking_top_k`.
    pub const MOST_LINKED: usize = 100;
    /// Maximum of `damping`. PageRank converges more slowly the nearer damping is to 1.
    pub const MOST_DAMPING: f64 = 0.95;

    /// Checks that every number is in range.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn check(&self) -> Result<(), InvalidOption> {
        let GraphOptions { linking_top_k, damping, passage_weight, .. } = *self;
        if !(1..=Self::MOST_LINKED).contains(&linking_top_k) {
            return Err(InvalidOption::new("graph.linking_top_k", linking_top_k, "must be from 1 to 100"));
        }
        if !(0.0..=Self::MOST_DAMPING).contains(&damping) {
            return Err(InvalidOption::new("graph.damping", damping, "must be from 0 to 0.95"));
        }
        if !(0.0..=1.0).contains(&passage_weight) {
            return Err(InvalidOption::new("graph.passage_weight", passage_weight, "must be from 0 to 1"));
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
        let linking_top_k = if variant == GraphVariant::GraphRagR1 { 20 } else { 5 };
        GraphOptions { variant, linking_top_k, damping: 0.5, passage_weight: 0.05 }
    }
}

/// Options of the mode `kag`: sizes of the graph and weights of its edges. TeaRAG publishes none of these values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KagOptions {
    /// Number of chunks (passages) in the graph, or the number of requested results if that is larger. TeaRAG uses at
    /// least 5 (§5.4.1).
    pub chunks: usize,
    /// Number of phrases found for each key entity. Triples that name one of them become candidates.
    pub entities: usize,
    /// Number of triples in the graph, or the number of requested results if that is larger. TeaRAG uses at least 5.
    pub triples: usize,
    /// Share of the mass that follows edges (α). A small value favors the question, a large one the structure of the
    /// graph (§5.5.2).
    pub damping: f64,
    /// Relevance above which a triple gets an edge to the question (eq. 2).
    pub threshold: f64,
    /// Number of PageRank steps. The walk always runs all of them.
    pub iterations: u32,
    /// Mapping from cosine to relevance.
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

/// Reranking of the candidates of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RerankOptions {
    /// If `true`, the search reranks its candidates, and fails without a reranker. `None` reranks in
    /// [`Mode::Kag`](crate::Mode) alone, and only where there is a reranker.
    pub wanted: Option<bool>,
    /// Number of candidates to rerank, or the number of requested passages if that is larger.
    pub depth: usize,
    /// Smallest relevance of a passage to return. `None` returns passages of any relevance. Not used in
    /// [`Mode::Kag`](crate::Mode).
    pub cutoff: Option<f32>,
}

impl Default for RerankOptions {
    fn default() -> RerankOptions {
        RerankOptions { wanted: None, depth: RerankOptions::DEPTH, cutoff: None }
    }
}

impl RerankOptions {
    /// Default number of candidates to rerank.
    pub const DEPTH: usize = 20;

    /// Checks that every number is in range.
    pub(crate) fn check(&self) -> Result<(), InvalidOption> {
        if !(1..=MAX_K).contains(&self.depth) {
            return Err(InvalidOption::new("rerank_depth", self.depth, "must be from 1 to 200"));
        }
        match self.cutoff {
            Some(cutoff) if !(0.0..=1.0).contains(&cutoff) => {
                Err(InvalidOption::new("rerank_cutoff", cutoff, "must be from 0 to 1"))
            }
            _ => Ok(()),
        }
    }
}

/// Mapping from the cosine between a question and a chunk or triple to a relevance between 0 and 1 (eq. 1, 2). TeaRAG
/// takes the sigmoid of a reranker's score, as the search does where the index has a reranker; this mapping is for
/// indexes without one. The plain sigmoid of a cosine would always lie between 0.27 and 0.73.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Relevance {
    /// `1 / (1 + exp(-slope · (cosine - center)))`.
    Sigmoid {
        /// Steepness of the sigmoid.
        slope: f64,
        /// Cosine whose relevance is one half. Also read under its earlier spelling `centre`.
        #[serde(alias = "centre")]
        center: f64,
    },
    /// The cosine itself, or 0 if it is negative. The variant has braces because serde accepts unknown fields next to a
    /// unit variant.
    Cosine {},
}

impl Default for Relevance {
    /// Values for sentence embedders such as MiniLM, which give unrelated texts a cosine below 0.2 and answers one
    /// above 0.5.
    fn default() -> Relevance {
        Relevance::Sigmoid { slope: 10.0, center: 0.4 }
    }
}

impl Relevance {
    /// Returns the relevance for this cosine.
    pub fn of(self, cosine: f32) -> f64 {
        let cosine = f64::from(cosine);
        match self {
            Relevance::Sigmoid { slope, center } => 1.0 / (1.0 + (-slope * (cosine - center)).exp()),
            Relevance::Cosine {} => cosine.clamp(0.0, 1.0),
        }
    }
}

impl KagOptions {
    /// Maximum of `chunks`, `entities`, `triples` and `iterations`.
    pub const MOST: usize = 1000;

    /// Checks that every number is in range.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn check(&self) -> Result<(), InvalidOption> {
        let refuse = |value: &dyn Display, expected| Err(InvalidOption::new("kag", value, expected));
        if !(0.0..1.0).contains(&self.damping) {
            return refuse(&self.damping, "needs a `damping` from 0 to below 1");
        }
        if !(0.0..=1.0).contains(&self.threshold) {
            return refuse(&self.threshold, "needs a `threshold` from 0 to 1");
        }
        let counts = [self.chunks, self.entities, self.triples, self.iterations as usize];
        if let Some(count) = counts.iter().find(|count| !(1..=Self::MOST).contains(*count)) {
            return refuse(count, "needs `chunks`, `entities`, `triples` and `iterations` from 1 to 1000");
        }
        match self.relevance {
            // A slope from JSON is finite; one computed by a caller of the library may not be.
            Relevance::Sigmoid { slope, center } if !(slope.is_finite() && center.is_finite()) => {
                refuse(&format_args!("{slope} and {center}"), "needs a finite `slope` and `center`")
            }
            Relevance::Sigmoid { .. } | Relevance::Cosine {} => Ok(()),
        }
    }
}

/// Parses the options' JSON, and checks them.
impl FromStr for KagOptions {
    type Err = String;

    fn from_str(json: &str) -> Result<KagOptions, String> {
        let options: KagOptions = serde_json::from_str(json).map_err(|error| error.to_string())?;
        options.check().map(|()| options).map_err(|invalid| invalid.reason())
    }
}
