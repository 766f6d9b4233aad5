//! Changes of a graph since its base snapshot.
//!
//! Everything that a commit touches is computed again, exactly as a build would: lists of passages, synonyms, and the
//! rows of the edges. Rows and lists of others stay in the mapped files. Entries of a row are in the order that they
//! would have in a new base snapshot, so sums over a row give the same bits.

mod change;
mod changed_rows;
mod flat;
mod rows;
mod similar;

use std::sync::Arc;

use super::base::BaseGraph;
use super::{AdjacentNode, TripleOrigin};
use crate::delta::{Layered, LayeredNumbers};
use crate::dense::GrowingCodes;

pub(crate) use change::{Deriving, StatementChanges};
pub(super) use changed_rows::ChangedRows;
pub(crate) use flat::FlatGraph;

/// Numbers in logical order with a value each: synonyms with cosines, or neighbors with weights.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct DeltaRow {
    pub(crate) numbers: Vec<u32>,
    pub(crate) values: Vec<f32>,
}

/// Phrase that a commit added.
#[derive(Debug, Clone)]
pub(super) struct AddedPhrase {
    pub(super) text: Arc<str>,
    pub(super) vector: Arc<[f32]>,
    pub(super) node: u32,
}

/// Fact that a commit added.
#[derive(Debug, Clone)]
pub(super) struct AddedFact {
    pub(super) numbers: [u32; 3],
    pub(super) vector: Arc<[f32]>,
}

/// Vectors and synonyms that the statements of a commit require, in the order of the new numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DerivedGraph {
    /// Vectors of new phrases.
    pub(crate) phrases: Vec<Arc<[f32]>>,
    /// Vectors of new facts.
    pub(crate) facts: Vec<Arc<[f32]>>,
    /// Phrases whose synonyms changed, with all their synonyms.
    pub(crate) synonyms: Vec<(u32, Vec<(u32, f32)>)>,
}

/// Sizes of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GraphCounts {
    /// Number of triples over all passages.
    pub(crate) triples: u64,
    /// Number of phrases that a passage names.
    pub(crate) phrases: u64,
    /// Number of facts that a passage states.
    pub(crate) facts: u64,
    /// Number of entries of all rows of edges, twice the number of connected pairs.
    pub(crate) entries: u64,
    /// Number of passages by the origin of their triples.
    pub(crate) origins: [u64; 4],
}

impl GraphCounts {
    /// Number of passages with triples of this origin.
    pub(crate) fn of(&self, origin: TripleOrigin) -> u64 {
        self.origins[origin as usize]
    }
}

/// Everything that differs from the base snapshot.
#[derive(Debug, Clone)]
pub(super) struct GraphDelta {
    pub(super) phrases: Vec<AddedPhrase>,
    pub(super) phrase_ids: Layered<Arc<str>, u32>,
    pub(super) relations: Vec<Arc<str>>,
    pub(super) relation_ids: Layered<Arc<str>, u32>,
    pub(super) facts: Vec<AddedFact>,
    /// Codes of the vectors of these facts.
    pub(super) fact_codes: GrowingCodes,
    pub(super) fact_ids: LayeredNumbers<[u32; 3], u32>,
    pub(super) passages_of: LayeredNumbers<u32, Arc<[u32]>>,
    pub(super) passages_of_fact: LayeredNumbers<u32, Arc<[u32]>>,
    pub(super) facts_of: LayeredNumbers<u32, Arc<[u32]>>,
    pub(super) synonyms: LayeredNumbers<u32, Arc<DeltaRow>>,
    pub(super) rows: ChangedRows,
    /// Nodes after those of the base snapshot.
    pub(super) nodes: Vec<AdjacentNode>,
    /// Nodes of the passages after those of the base snapshot.
    pub(super) passage_nodes: Vec<u32>,
    pub(super) counts: GraphCounts,
}

impl GraphDelta {
    /// No change.
    pub(super) fn new(base: &BaseGraph) -> GraphDelta {
        GraphDelta {
            phrases: Vec::new(),
            phrase_ids: Layered::default(),
            relations: Vec::new(),
            relation_ids: Layered::default(),
            facts: Vec::new(),
            fact_codes: GrowingCodes::default(),
            fact_ids: Layered::default(),
            passages_of: Layered::default(),
            passages_of_fact: Layered::default(),
            facts_of: Layered::default(),
            synonyms: Layered::default(),
            rows: ChangedRows::default(),
            nodes: Vec::new(),
            passage_nodes: Vec::new(),
            counts: GraphCounts {
                triples: base.stated,
                phrases: base.phrases.len() as u64,
                facts: base.facts[0].len() as u64,
                entries: 2 * base.edges,
                origins: base.origins,
            },
        }
    }

    /// Merges the layers of every map that has grown.
    pub(super) fn settle(&mut self) {
        self.phrase_ids.settle();
        self.relation_ids.settle();
        self.fact_ids.settle();
        self.passages_of.settle();
        self.passages_of_fact.settle();
        self.facts_of.settle();
        self.synonyms.settle();
        self.rows.settle();
    }
}
