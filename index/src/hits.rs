//! Builds the results of a search, passages and triples, from the snapshot.

use crate::condition::{AllowedPassages, admits};
use crate::error::IndexError;
use crate::evidence::{Hit, HitPath, TripleHit};
use crate::graph::Graph;
use crate::index::Index;

/// Maximum number of passages named with a triple.
const MOST_PASSAGES: usize = 10;

/// Iterates over the allowed passages that state a fact, in corpus order.
pub(crate) fn passages_stating(
    graph: &Graph,
    fact: u32,
    allowed: Option<&AllowedPassages>,
) -> impl Iterator<Item = u32> {
    graph.passages_of_fact(fact).iter().copied().filter(move |&number| admits(allowed, number))
}

impl Index {
    /// Reads the passage with this number, and combines it with its rank and score.
    pub(crate) fn hit(&self, number: u32, rank: usize, score: f32, path: HitPath) -> Result<Hit, IndexError> {
        let store = &self.snapshot.store;
        Ok(Hit { rank, score, passage: store.passage(number)?, metadata: store.metadata(number)?, path })
    }

    /// Converts a fact to a result that names the first allowed passages stating it.
    pub(crate) fn triple_hit(
        &self,
        graph: &Graph,
        fact: u32,
        rank: usize,
        score: f32,
        allowed: Option<&AllowedPassages>,
    ) -> Result<TripleHit, IndexError> {
        let passages = passages_stating(graph, fact, allowed).take(MOST_PASSAGES);
        let passages = passages.map(|number| Ok(self.snapshot.store.name(number)?.0));
        let fact = graph.fact(fact);
        Ok(TripleHit {
            rank,
            score,
            subject: graph.phrase(fact.subject).to_owned(),
            relation: fact.relation.to_owned(),
            object: graph.phrase(fact.object).to_owned(),
            passages: passages.collect::<Result<_, IndexError>>()?,
        })
    }
}
