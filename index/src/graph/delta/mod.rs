//! Changes of a graph since its base snapshot.
//!
//! Everything that a commit touches is computed again, exactly as a build would: lists of passages, synonyms, and the
//! rows of the edges. Other rows and lists stay in the mapped files. Entries of a row are in the order that they would
//! have in a new base snapshot, so sums over a row give the same bits.

mod change;
mod changed_rows;
mod flat;
mod rows;
mod similar;

use std::sync::Arc;

use super::base::BaseGraph;
use super::synonyms::Sketches;
use super::{AdjacentNode, TripleOrigin};
use crate::delta::{Layered, LayeredNumbers, PagedMap, SharedList};
use crate::dense::GrowingCodes;

pub(crate) use change::{Deriving, StatementChanges};
pub(super) use changed_rows::ChangedRows;
pub(crate) use flat::FlatGraph;

/// Numbers in logical order with a value each: synonyms with cosines, or neighbors with weights.
///
/// A walk asks for the number of entries of most nodes that it sees. The pointer to a slice holds this number, so the
/// walk need not read the slice.
#[derive(Debug, Clone, Default)]
pub(super) struct DeltaRow {
    /// Numbers, then the bits of the values.
    words: Arc<[u32]>,
}

impl DeltaRow {
    /// Builds a row of as many values as numbers.
    fn of(numbers: impl Iterator<Item = u32>, values: impl Iterator<Item = f32>) -> DeltaRow {
        DeltaRow { words: numbers.chain(values.map(f32::to_bits)).collect() }
    }

    /// Returns the numbers and their values.
    pub(super) fn parts(&self) -> (&[u32], &[f32]) {
        let (numbers, values) = self.words.split_at(self.words.len() / 2);
        (numbers, bytemuck::cast_slice(values))
    }
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
    pub(super) phrases: SharedList<AddedPhrase>,
    pub(super) phrase_ids: Layered<Arc<str>, u32>,
    pub(super) relations: SharedList<Arc<str>>,
    pub(super) relation_ids: Layered<Arc<str>, u32>,
    pub(super) facts: SharedList<AddedFact>,
    /// Codes of the vectors of these facts.
    pub(super) fact_codes: GrowingCodes,
    pub(super) fact_ids: LayeredNumbers<[u32; 3], u32>,
    pub(super) passages_of: PagedMap<Arc<[u32]>>,
    pub(super) passages_of_fact: PagedMap<Arc<[u32]>>,
    pub(super) facts_of: PagedMap<Arc<[u32]>>,
    pub(super) synonyms: PagedMap<DeltaRow>,
    pub(super) rows: ChangedRows,
    /// Sketches of the vectors of phrases. `None` until a commit compares any.
    pub(super) sketches: Option<Sketches>,
    /// Nodes after those of the base snapshot.
    pub(super) nodes: SharedList<AdjacentNode>,
    /// Nodes of the passages after those of the base snapshot.
    pub(super) passage_nodes: SharedList<u32>,
    pub(super) counts: GraphCounts,
}

impl GraphDelta {
    /// Creates a delta without changes.
    pub(super) fn new(base: &BaseGraph) -> GraphDelta {
        GraphDelta {
            phrases: SharedList::default(),
            phrase_ids: Layered::default(),
            relations: SharedList::default(),
            relation_ids: Layered::default(),
            facts: SharedList::default(),
            fact_codes: GrowingCodes::default(),
            fact_ids: Layered::default(),
            passages_of: PagedMap::default(),
            passages_of_fact: PagedMap::default(),
            facts_of: PagedMap::default(),
            synonyms: PagedMap::default(),
            rows: ChangedRows::default(),
            sketches: None,
            nodes: SharedList::default(),
            passage_nodes: SharedList::default(),
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
    }
}
