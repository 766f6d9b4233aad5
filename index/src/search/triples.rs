//! Graph search that also returns facts: GraphRAG-R1's retriever.

use super::SearchContext;
use crate::error::IndexError;
use crate::evidence::Evidence;
use crate::graph::Graph;
use crate::hits::passages_stating;

impl SearchContext<'_> {
    /// Returns text and triples of one search (GraphRAG-R1 §3.3). The triples are the facts that the filter kept, or
    /// all facts given to the filter if it kept none (`server.py`); without a filter, the facts most similar to the
    /// query.
    pub(super) fn by_triples(&self, graph: &Graph) -> Result<Evidence, IndexError> {
        let candidates = self.query.graph.linking_top_k.max(self.query.triples);
        let found = self.search_graph(graph, self.query.k, candidates)?;
        let facts = found.returned();
        self.check("the passages were read")?;
        let mut budget = self.budget();
        let hits = self.hits(&found, &mut budget)?;
        let stated = |(fact, _): &(u32, f32)| passages_stating(graph, *fact, self.allowed).next().is_some();
        let facts = facts.into_iter().filter(stated).take(self.query.triples).zip(1..);
        let triples = facts.filter_map(|((fact, score), rank)| {
            budget.triple(|| self.index.triple_hit(graph, fact, rank, score, self.allowed)).transpose()
        });
        let triples = triples.collect::<Result<_, IndexError>>()?;
        Ok(Evidence { triples, walk: Some(found.trace), ..self.evidence(hits, &budget) })
    }
}
