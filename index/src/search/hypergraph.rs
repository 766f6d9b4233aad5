//! Facts of a hypergraph: the retriever of Graph-R1 (arXiv 2507.21892), on which PathRouter builds.
//!
//! In Graph-R1 a language model extracts n-ary facts; each is a hyperedge whose nodes are its entities. Here the facts
//! are the index's triples, so that each has two entities, or one if subject and object are the same. Entities are
//! matched by their names, as triples come without the descriptions that Graph-R1 embeds with them; facts are matched
//! by their vectors. The search follows `_build_query_context` in Graph-R1's `operate.py`.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::SearchContext;
use crate::condition::admits;
use crate::error::IndexError;
use crate::evidence::{Evidence, HitPath};
use crate::graph::Graph;
use crate::hits::{passages_stating, worded};

/// Number of entities, and of facts, that are matched by their vectors (`script_api.py`).
const MATCHES: usize = 5;

impl SearchContext<'_> {
    /// Returns the best facts (`triples` of the query), in the words of a passage, and the first passage that states
    /// each of them (at most `k`). Graph-R1 returns facts only; the passages are for citations and for measuring
    /// recall.
    pub(super) fn by_hypergraph(&self, graph: &Graph) -> Result<Evidence, IndexError> {
        let vector = self.vector()?;
        // Filtered before the best are taken, so that a condition does not shorten the lists.
        let named = |phrase| graph.passages_of(phrase).iter().any(|&passage| admits(self.allowed, passage));
        let stated = |fact| passages_stating(graph, fact, self.allowed).next().is_some();
        self.check("the phrases were searched")?;
        let usable = |phrase| !graph.phrase(phrase).is_empty() && named(phrase);
        let entities = graph.nearest_phrases(vector, MATCHES, usable);
        let entities: Vec<u32> = entities.iter().map(|scored| scored.number).collect();
        self.check("the facts were searched")?;
        let facts = graph.nearest_facts(vector, MATCHES, stated).map(|found| found.best).unwrap_or_default();
        let facts: Vec<u32> = facts.iter().map(|scored| scored.number).collect();
        let ranked = ranked_facts(graph, &entities, &facts);
        self.check("the passages were read")?;
        // The matched entities also have facts of other passages.
        let ranked = ranked.into_iter().filter(|(fact, _)| stated(*fact)).take(self.query.triples);
        let mut budget = self.budget();
        let mut triples = Vec::new();
        let mut hits = Vec::new();
        let mut seen = HashSet::new();
        for (fact, score) in ranked {
            let rank = triples.len() + 1;
            let read = || {
                let hit = self.index.triple_hit(graph, fact, rank, score as f32, self.allowed)?;
                worded(graph, fact, hit, self.allowed)
            };
            triples.extend(budget.triple(read)?);
            let stating = passages_stating(graph, fact, self.allowed).next();
            if let Some(passage) = stating.filter(|&passage| hits.len() < self.query.k && seen.insert(passage)) {
                let rank = hits.len() + 1;
                hits.extend(budget.hit(|| self.index.hit(passage, rank, score as f32, HitPath::default()))?);
            }
        }
        Ok(Evidence { triples, ..self.evidence(hits, &budget) })
    }
}

/// Ranks facts by two lists: those of the matched entities, by degree and weight, and the matched facts, by weight. A
/// position in a list is worth its reciprocal, so that a fact of two matched entities counts twice in the first list.
/// Ties keep the order in which facts came up.
fn ranked_facts(graph: &Graph, entities: &[u32], facts: &[u32]) -> Vec<(u32, f64)> {
    let mut of_entities: Vec<(u32, [usize; 2])> = Vec::new();
    for &entity in entities {
        let incident = facts_naming(graph, entity);
        let degree = incident.len();
        of_entities.extend(incident.into_iter().map(|fact| (fact, [degree + arity(graph, fact), weight(graph, fact)])));
    }
    // Stable sorts, as in Python.
    of_entities.sort_by_key(|(_, rank)| Reverse(*rank));
    let mut matched = facts.to_vec();
    matched.sort_by_key(|&fact| Reverse(weight(graph, fact)));
    let mut ranked: Vec<(u32, f64)> = Vec::new();
    let mut places: HashMap<u32, usize> = HashMap::new();
    let first = of_entities.iter().map(|(fact, _)| *fact).zip(1..);
    for (fact, position) in first.chain(matched.into_iter().zip(1..)) {
        let place = *places.entry(fact).or_insert(ranked.len());
        if place == ranked.len() {
            ranked.push((fact, 0.0));
        }
        ranked[place].1 += 1.0 / f64::from(position);
    }
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    ranked
}

/// Facts that name an entity, in the order of [`Graph::fact_order`].
fn facts_naming(graph: &Graph, entity: u32) -> Vec<u32> {
    let names = |&fact: &u32| {
        let fact = graph.fact(fact);
        fact.subject == entity || fact.object == entity
    };
    let passages = graph.passages_of(entity).iter();
    let facts: BTreeSet<u32> = passages.flat_map(|&passage| graph.facts_of(passage)).copied().filter(names).collect();
    let mut facts: Vec<u32> = facts.into_iter().collect();
    facts.sort_by(|&a, &b| graph.fact_order(a, b));
    facts
}

/// Number of entities of a fact: the degree of its hyperedge.
fn arity(graph: &Graph, fact: u32) -> usize {
    let fact = graph.fact(fact);
    if fact.subject == fact.object { 1 } else { 2 }
}

/// Weight of a fact: the number of passages that state it. Graph-R1 sums the scores that a language model gives each
/// statement; a triple has none, and counts 1.
fn weight(graph: &Graph, fact: u32) -> usize {
    graph.passages_of_fact(fact).len()
}

#[cfg(test)]
mod tests;
