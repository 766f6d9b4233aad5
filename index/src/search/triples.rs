//! Passages over the graph, with the facts that led to them: GraphRAG-R1's retriever.

use super::Search;
use crate::condition::{Allowed, admits};
use crate::error::IndexError;
use crate::evidence::{Evidence, TripleHit};
use crate::graph::Graph;
use crate::index::Index;

/// Passages that are named with a triple.
const MOST_PASSAGES: usize = 10;

impl Search<'_> {
    /// GraphRAG-R1 §3.3: text and triples of one search. The triples are the facts that its filter kept, or those that
    /// it was given if it kept none (`server.py`); without a filter, the facts most like the query.
    pub(super) fn by_triples(&self, graph: &Graph) -> Result<Evidence, IndexError> {
        let candidates = self.query.graph.linking_top_k.max(self.query.triples);
        let walked = self.walk(graph, self.query.k, candidates)?;
        let facts = walked.returned();
        self.check("the passages were read")?;
        let hits = self.hits(&walked)?;
        let stated = |(fact, _): &(u32, f32)| stating(graph, *fact, self.allowed).next().is_some();
        let facts = facts.into_iter().filter(stated).take(self.query.triples).zip(1..);
        let triples = facts.map(|((fact, score), rank)| self.index.triple_hit(graph, fact, rank, score, self.allowed));
        let triples = triples.collect::<Result<_, IndexError>>()?;
        Ok(Evidence { triples, walk: Some(walked.walk), ..self.evidence(hits) })
    }
}

/// The passages that state a fact and may be found, in the order of the corpus.
pub(crate) fn stating(graph: &Graph, fact: u32, allowed: Option<&Allowed>) -> impl Iterator<Item = u32> {
    graph.passages_of_fact(fact).iter().copied().filter(move |&number| admits(allowed, number))
}

impl Index {
    /// A fact of `graph` as it is returned, in this place and with this score, of those passages that may be found.
    pub(crate) fn triple_hit(
        &self,
        graph: &Graph,
        fact: u32,
        rank: usize,
        score: f32,
        allowed: Option<&Allowed>,
    ) -> Result<TripleHit, IndexError> {
        let passages = stating(graph, fact, allowed).take(MOST_PASSAGES);
        let passages = passages.map(|number| Ok(self.snapshot.store.passage(number)?.id));
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
