//! Graph of phrases and passages, searched beside the passages themselves.
//!
//! Triples of passages are normalized to phrases (their subjects and objects) and facts (subject, relation, object).
//! Phrases and passages are the nodes of an undirected weighted graph, as in HippoRAG 2. In a base snapshot, phrases
//! are numbered in code point order and facts in the order of subject, relation and object. Phrases and facts that
//! commits add have the following numbers, in the order in which they became known; [`Graph::phrase_order`] and
//! [`Graph::fact_order`] give the order that all of them would have in a new base snapshot.

mod adjacency;
mod base;
mod build;
mod columns;
mod delta;
mod edges;
mod lists;
pub mod phrase;
pub mod scale;
mod statements;
mod synonyms;
mod table;
mod triples;
mod unread_scripts;

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use crate::delta::DocumentDelta;
use crate::dense::{Extremes, VectorFile, VectorRows, dot};
use crate::error::IndexError;
use crate::manifest::GraphInfo;
use crate::scored::{Scored, best_by};
use crate::triple::Triple;

pub use adjacency::Adjacency;
pub(crate) use build::GraphDraft;
pub(crate) use delta::{DerivedGraph, Deriving, FlatGraph, GraphCounts, StatementChanges};
pub(crate) use triples::{TripleFile, TripleOrigin, TripleWriter, distinct};

use base::BaseGraph;
use delta::GraphDelta;

/// Fact with the numbers of its phrases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphFact<'a> {
    /// Number of the subject's phrase.
    pub subject: u32,
    /// Normalized relation between subject and object.
    pub relation: &'a str,
    /// Number of the object's phrase.
    pub object: u32,
}

/// Phrase or passage of a node of the adjacency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdjacentNode {
    /// Phrase with this number.
    Phrase(u32),
    /// Passage with this number.
    Passage(u32),
}

/// Immutable graph of a snapshot. Lookups of unknown numbers return empty values.
#[derive(Debug, Clone)]
pub struct Graph {
    base: Arc<BaseGraph>,
    delta: GraphDelta,
    documents: Arc<DocumentDelta>,
}

impl Graph {
    /// Opens the graph in the folder `dir` over this number of passages.
    pub(crate) fn open(dir: &Path, info: &GraphInfo, passages: usize, dims: usize) -> Result<Graph, IndexError> {
        let base = Arc::new(BaseGraph::open(dir, info, passages, dims)?);
        let documents = Arc::new(DocumentDelta::new(u32::try_from(passages).unwrap_or(u32::MAX)));
        Ok(Graph { delta: GraphDelta::new(&base), base, documents })
    }

    /// Returns `true` if nothing has changed since the base snapshot.
    pub(crate) fn is_base(&self) -> bool {
        self.documents.is_empty()
    }

    /// First number that no phrase ever had. Without commits since the base snapshot, the number of phrases.
    pub fn phrases(&self) -> usize {
        self.base.phrases.len() + self.delta.phrases.len()
    }

    /// First number that no fact ever had. Without commits since the base snapshot, the number of facts.
    pub fn facts(&self) -> usize {
        self.base.facts[0].len() + self.delta.facts.len()
    }

    /// First number that no passage ever had. Without commits since the base snapshot, the number of passages.
    pub fn passages(&self) -> usize {
        self.base.triples.passages() + self.delta.passage_nodes.len()
    }

    /// Normalized text of a phrase.
    pub fn phrase(&self, phrase: u32) -> &str {
        match (phrase as usize).checked_sub(self.base.phrases.len()) {
            None => self.base.phrases.get(phrase),
            Some(place) => self.delta.phrases.get(place).map_or("", |phrase| &phrase.text),
        }
    }

    /// Returns the number of a phrase, given in normal form. `None` if the graph does not contain it.
    pub fn phrase_id(&self, text: &str) -> Option<u32> {
        self.known_phrase(text).filter(|&phrase| self.has_phrase(phrase))
    }

    /// Returns the number of a phrase, even if no passage names it any more.
    fn known_phrase(&self, text: &str) -> Option<u32> {
        self.base.phrases.find(text).or_else(|| self.delta.phrase_ids.get(text).copied())
    }

    /// Returns `true` if a passage names this phrase.
    pub(crate) fn has_phrase(&self, phrase: u32) -> bool {
        !self.passages_of(phrase).is_empty()
    }

    /// Returns the phrases that a passage names, in the order of their texts.
    fn phrases_in_order(&self) -> Vec<u32> {
        let mut phrases: Vec<u32> = (0..self.phrases() as u32).filter(|&phrase| self.has_phrase(phrase)).collect();
        // A stable sort merges the sorted base phrases with the added ones.
        phrases.sort_by(|&a, &b| self.phrase_order(a, b));
        phrases
    }

    /// Compares phrases by text.
    pub fn phrase_order(&self, a: u32, b: u32) -> Ordering {
        let base = self.base.phrases.len() as u32;
        // The base snapshot numbers its phrases, and likewise its facts, in the order of their texts.
        if a.max(b) < base { a.cmp(&b) } else { self.phrase(a).cmp(self.phrase(b)) }
    }

    /// Compares facts by the texts of their subjects, relations and objects.
    pub fn fact_order(&self, a: u32, b: u32) -> Ordering {
        let base = self.base.facts[0].len() as u32;
        if a.max(b) < base {
            return a.cmp(&b);
        }
        let first = self.fact(a);
        let second = self.fact(b);
        self.phrase_order(first.subject, second.subject)
            .then_with(|| first.relation.cmp(second.relation))
            .then_with(|| self.phrase_order(first.object, second.object))
    }

    /// Returns a fact.
    pub fn fact(&self, fact: u32) -> GraphFact<'_> {
        let [subject, relation, object] = self.fact_numbers(fact);
        GraphFact { subject, relation: self.relation(relation), object }
    }

    fn fact_numbers(&self, fact: u32) -> [u32; 3] {
        match (fact as usize).checked_sub(self.base.facts[0].len()) {
            None => self.base.fact(fact),
            Some(place) => self.delta.facts.get(place).map_or([u32::MAX; 3], |fact| fact.numbers),
        }
    }

    fn relation(&self, relation: u32) -> &str {
        match (relation as usize).checked_sub(self.base.relations.len()) {
            None => self.base.relations.get(relation),
            Some(place) => self.delta.relations.get(place).map_or("", |relation| relation),
        }
    }

    /// Text of a fact as embedded; see [`phrase::fact`].
    pub fn fact_text(&self, fact: u32) -> String {
        let GraphFact { subject, relation, object } = self.fact(fact);
        phrase::fact(self.phrase(subject), relation, self.phrase(object))
    }

    /// Passages with a triple that names this phrase, in order.
    pub fn passages_of(&self, phrase: u32) -> &[u32] {
        match self.delta.passages_of.get(phrase) {
            Some(passages) => passages,
            None => self.base.passages_of.get(phrase),
        }
    }

    /// Passages that state this fact, in order.
    pub fn passages_of_fact(&self, fact: u32) -> &[u32] {
        match self.delta.passages_of_fact.get(fact) {
            Some(passages) => passages,
            None => self.base.passages_of_fact.get(fact),
        }
    }

    /// Facts that this passage states, in the order of [`Graph::fact_order`].
    pub fn facts_of(&self, passage: u32) -> &[u32] {
        match self.delta.facts_of.get(passage) {
            Some(facts) => facts,
            None => self.base.facts_of.get(passage),
        }
    }

    /// Synonyms of a phrase in the order of [`Graph::phrase_order`], and their cosines.
    pub fn synonyms(&self, phrase: u32) -> (&[u32], &[f32]) {
        match self.delta.synonyms.get(phrase) {
            Some(row) => row.parts(),
            None => self.base.synonyms.get(phrase),
        }
    }

    /// Reads the triples of a passage as they were extracted or given.
    ///
    /// # Errors
    /// If the record is damaged.
    pub fn triples(&self, passage: u32) -> Result<Vec<Triple>, IndexError> {
        match self.documents.get(passage) {
            None => self.base.triples.get(passage),
            Some(document) => Ok(document.map(|document| document.triples.clone()).unwrap_or_default()),
        }
    }

    /// Origin of the triples of a passage.
    pub(crate) fn origin(&self, passage: u32) -> TripleOrigin {
        match self.documents.get(passage) {
            None => self.base.origin(passage),
            Some(document) => document.map_or(TripleOrigin::None, |document| document.origin),
        }
    }

    /// Edges of the graph. [`Graph::node`] returns the phrase or passage of a node.
    pub fn adjacency(&self) -> Adjacency<'_> {
        let nodes = self.base.phrases.len() + self.base.triples.passages() + self.delta.nodes.len();
        Adjacency { changed: Some(&self.delta.rows), count: nodes, ..self.base.adjacency.view() }
    }

    /// Node of a passage.
    pub fn passage_node(&self, passage: u32) -> u32 {
        match (passage as usize).checked_sub(self.base.triples.passages()) {
            None => self.base.phrases.len() as u32 + passage,
            Some(place) => self.delta.passage_nodes.get(place).copied().unwrap_or(u32::MAX),
        }
    }

    /// Node of a phrase.
    pub fn phrase_node(&self, phrase: u32) -> u32 {
        match (phrase as usize).checked_sub(self.base.phrases.len()) {
            None => phrase,
            Some(place) => self.delta.phrases.get(place).map_or(u32::MAX, |phrase| phrase.node),
        }
    }

    /// Returns the phrase or passage of a node. In a base snapshot, the nodes are the phrases by number, then the
    /// passages; commits add further nodes after them.
    pub fn node(&self, node: u32) -> AdjacentNode {
        let phrases = self.base.phrases.len() as u32;
        let base = phrases + self.base.triples.passages() as u32;
        match node.checked_sub(base) {
            None if node < phrases => AdjacentNode::Phrase(node),
            None => AdjacentNode::Passage(node - phrases),
            Some(place) => self.delta.nodes.get(place as usize).copied().unwrap_or(AdjacentNode::Passage(u32::MAX)),
        }
    }

    /// Compares nodes: phrases by [`Graph::phrase_order`], then passages by number.
    pub(crate) fn node_order(&self, a: u32, b: u32) -> Ordering {
        match (self.node(a), self.node(b)) {
            (AdjacentNode::Phrase(a), AdjacentNode::Phrase(b)) => self.phrase_order(a, b),
            (AdjacentNode::Passage(a), AdjacentNode::Passage(b)) => a.cmp(&b),
            (AdjacentNode::Phrase(_), AdjacentNode::Passage(_)) => Ordering::Less,
            (AdjacentNode::Passage(_), AdjacentNode::Phrase(_)) => Ordering::Greater,
        }
    }

    /// Text of the phrase of a node. Empty for a passage.
    pub(crate) fn node_text(&self, node: u32) -> &str {
        match self.node(node) {
            AdjacentNode::Phrase(phrase) => self.phrase(phrase),
            AdjacentNode::Passage(_) => "",
        }
    }

    /// Vector of a phrase, of length 1.
    pub fn phrase_vector(&self, phrase: u32) -> &[f32] {
        match (phrase as usize).checked_sub(self.base.phrases.len()) {
            None => self.base.phrase_vectors.row(phrase).unwrap_or_default(),
            Some(place) => self.delta.phrases.get(place).map_or(&[], |phrase| &phrase.vector),
        }
    }

    /// Vector of a fact, of length 1.
    pub fn fact_vector(&self, fact: u32) -> &[f32] {
        match (fact as usize).checked_sub(self.base.facts[0].len()) {
            None => self.base.fact_vectors.row(fact).unwrap_or_default(),
            Some(place) => self.delta.facts.get(place).map_or(&[], |fact| &fact.vector),
        }
    }

    /// Returns the `k` phrases most similar to `query` that `usable` accepts.
    pub(crate) fn nearest_phrases(&self, query: &[f32], k: usize, usable: impl Fn(u32) -> bool) -> Vec<Scored> {
        let base = self.base.phrase_vectors.rows().zip(0..);
        let added = self.delta.phrases.iter_from(0).map(|phrase| &*phrase.vector);
        let rows = base.chain(added.zip(self.base.phrases.len() as u32..));
        let scored = rows.map(|(row, number)| Scored { number, score: dot(query, row) });
        let scored = scored.filter(|scored| usable(scored.number));
        // A passage names every phrase of a base snapshot, so no lookup is needed there.
        let scored = scored.filter(|scored| self.is_base() || self.has_phrase(scored.number));
        best_by(scored.collect(), k, |a, b| self.phrase_order(a, b))
    }

    /// Returns the `k` facts most similar to `query`, with the smallest and largest similarity of any fact, all exact.
    /// Leaves out facts that `usable` does not accept. `None` if there are no facts.
    pub(crate) fn nearest_facts(&self, query: &[f32], k: usize, usable: impl Fn(u32) -> bool) -> Option<Extremes> {
        let removed = |fact| self.delta.passages_of_fact.get(fact).is_some_and(|passages| passages.is_empty());
        let gone = |fact: u32| removed(fact) || !usable(fact);
        let base = self.base.fact_codes.extremes(&self.base.fact_vectors, query, k, &gone);
        let first = self.base.facts[0].len() as u32;
        let added_gone = |place| gone(first + place);
        let row = |place: u32| self.delta.facts.get(place as usize).map(|fact| &*fact.vector);
        let order = |a, b| self.fact_order(first + a, first + b);
        let added = self.delta.fact_codes.extremes(query, k, &added_gone, &row, &order);
        let Some(mut added) = added else { return base };
        added.best.iter_mut().for_each(|scored| scored.number += first);
        let Some(base) = base else { return Some(added) };
        added.best.extend(base.best);
        let best = best_by(added.best, k, |a, b| self.fact_order(a, b));
        Some(Extremes { best, least: base.least.min(added.least), largest: base.largest.max(added.largest) })
    }

    /// Returns the `k` best of these facts.
    pub(crate) fn best_facts(&self, scored: Vec<Scored>, k: usize) -> Vec<Scored> {
        best_by(scored, k, |a, b| self.fact_order(a, b))
    }

    /// Vectors of the phrases of the base snapshot, each of length 1.
    pub(crate) fn base_phrase_vectors(&self) -> &VectorFile {
        &self.base.phrase_vectors
    }

    /// Vectors of the facts of the base snapshot, each of length 1.
    pub(crate) fn base_fact_vectors(&self) -> &VectorFile {
        &self.base.fact_vectors
    }
}

/// Vectors of the phrases.
impl VectorRows for Graph {
    fn dims(&self) -> usize {
        self.base.phrase_vectors.dims()
    }

    fn row(&self, number: u32) -> Option<&[f32]> {
        Some(self.phrase_vector(number)).filter(|vector| !vector.is_empty())
    }
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod growth;
#[cfg(test)]
mod tests;
