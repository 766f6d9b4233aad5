//! The graph of phrases and passages: what is searched beside the passages themselves.
//!
//! Triples of passages are normalised to phrases (their subjects and objects) and facts (subject, relation, object).
//! Phrases and passages are the nodes of an undirected weighted graph, as in HippoRAG 2; phrases are numbered in the
//! order of their code points, facts in the order of their subject, relation and object.

mod adjacency;
mod build;
mod columns;
mod edges;
mod lists;
pub mod phrase;
pub mod scale;
mod statements;
mod synonyms;
mod table;
mod triples;

use std::path::Path;

use crate::dense::{Codes, Extremes, VectorFile};
use crate::error::IndexError;
use crate::layout::graph_file;
use crate::manifest::GraphInfo;
use crate::triple::Triple;

pub use adjacency::Adjacency;
pub(crate) use build::GraphDraft;
use synonyms::{PreviousSynonyms, Synonyms};
pub(crate) use triples::{TripleFile, TripleOrigin, TripleWriter, distinct};

use columns::{Column, ColumnFile};
use lists::Lists;
use table::StringTable;

/// A fact by the numbers of its phrases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphFact<'a> {
    /// Number of the phrase that the fact is about.
    pub subject: u32,
    /// What it says of the two, normalised.
    pub relation: &'a str,
    /// Number of the phrase that the subject is related to.
    pub object: u32,
}

/// The graph of a snapshot. Never changes. Numbers that name nothing are answered with what is empty.
#[derive(Debug)]
pub struct Graph {
    triples: TripleFile,
    /// Where triples are from of which the file says no more than that an extractor found them: of the only one, where
    /// there was only one.
    extracted: TripleOrigin,
    phrases: StringTable,
    relations: StringTable,
    facts: [Column<u32>; 3],
    passages_of: Lists,
    passages_of_fact: Lists,
    facts_of: Lists,
    phrase_vectors: VectorFile,
    fact_vectors: VectorFile,
    fact_codes: Codes,
    synonyms: Synonyms,
    adjacency: adjacency::AdjacencyFile,
}

impl Graph {
    /// Opens the graph in the folder `dir` over so many passages.
    pub(crate) fn open(dir: &Path, info: &GraphInfo, passages: usize, dims: usize) -> Result<Graph, IndexError> {
        let path = |name| dir.join(name);
        let phrases = StringTable::open(&path(graph_file::PHRASES))?;
        let relations = StringTable::open(&path(graph_file::RELATIONS))?;
        let facts = open_facts(&path(graph_file::FACTS), phrases.len(), relations.len())?;
        let (count, nodes) = (facts[0].len(), phrases.len() + passages);
        if [phrases.len() as u64, count as u64] != [info.phrases, info.facts] {
            let message = format!("it holds {} phrases and {count} facts", phrases.len());
            return Err(IndexError::corrupt(&path(graph_file::PHRASES), message));
        }
        let mut mentions = ColumnFile::open(&path(graph_file::MENTIONS))?;
        Ok(Graph {
            triples: TripleFile::open(&path(graph_file::TRIPLES), passages)?,
            extracted: TripleOrigin::Extracted.told_by(info),
            passages_of: Lists::read(&mut mentions, phrases.len(), passages)?,
            passages_of_fact: Lists::read(&mut mentions, count, passages)?,
            facts_of: Lists::read(&mut mentions, passages, count)?,
            phrase_vectors: VectorFile::open(&path(graph_file::PHRASE_VECTORS), phrases.len(), dims)?,
            fact_vectors: VectorFile::open(&path(graph_file::FACT_VECTORS), count, dims)?,
            fact_codes: Codes::open(&path(graph_file::FACT_CODES), count, dims)?,
            synonyms: Synonyms::open(&path(graph_file::SYNONYMS), phrases.len())?,
            adjacency: adjacency::AdjacencyFile::open(&path(graph_file::ADJACENCY), nodes)?,
            phrases,
            relations,
            facts,
        })
    }

    /// How many phrases there are.
    pub fn phrases(&self) -> usize {
        self.phrases.len()
    }

    /// How many facts there are.
    pub fn facts(&self) -> usize {
        self.facts[0].len()
    }

    /// How many passages there are.
    pub fn passages(&self) -> usize {
        self.triples.passages()
    }

    /// The text of a phrase, normalised.
    pub fn phrase(&self, phrase: u32) -> &str {
        self.phrases.get(phrase)
    }

    /// The number of a phrase that is given in its normal form.
    pub fn phrase_id(&self, text: &str) -> Option<u32> {
        self.phrases.find(text)
    }

    /// A fact.
    pub fn fact(&self, fact: u32) -> GraphFact<'_> {
        let [subject, relation, object] =
            [0, 1, 2].map(|part: usize| self.facts[part].get(fact as usize).copied().unwrap_or(u32::MAX));
        GraphFact { subject, relation: self.relations.get(relation), object }
    }

    /// The text of a fact, by which it is embedded: see [`phrase::fact`].
    pub fn fact_text(&self, fact: u32) -> String {
        let GraphFact { subject, relation, object } = self.fact(fact);
        phrase::fact(self.phrase(subject), relation, self.phrase(object))
    }

    /// The passages with a triple that names this phrase, in order.
    pub fn passages_of(&self, phrase: u32) -> &[u32] {
        self.passages_of.get(phrase)
    }

    /// The passages that state this fact, in order.
    pub fn passages_of_fact(&self, fact: u32) -> &[u32] {
        self.passages_of_fact.get(fact)
    }

    /// The facts that this passage states, in order.
    pub fn facts_of(&self, passage: u32) -> &[u32] {
        self.facts_of.get(passage)
    }

    /// The synonyms of a phrase, in order, and their cosines.
    pub fn synonyms(&self, phrase: u32) -> (&[u32], &[f32]) {
        self.synonyms.get(phrase)
    }

    /// What the synonyms of a changed graph are found by.
    fn as_earlier(&self) -> PreviousSynonyms<'_> {
        PreviousSynonyms { phrases: &self.phrases, synonyms: &self.synonyms }
    }

    /// The triples of a passage as they were extracted or given.
    ///
    /// # Errors
    /// If their record is damaged.
    pub fn triples(&self, passage: u32) -> Result<Vec<Triple>, IndexError> {
        self.triples.get(passage)
    }

    /// Where the triples of a passage are from.
    pub(crate) fn origin(&self, passage: u32) -> TripleOrigin {
        match self.triples.origin(passage) {
            TripleOrigin::Extracted => self.extracted,
            other => other,
        }
    }

    /// The edges: nodes are the phrases, by their numbers, then the passages, numbered from [`Graph::phrases`].
    pub fn adjacency(&self) -> Adjacency<'_> {
        self.adjacency.view()
    }

    /// The vector of a phrase, of length 1.
    pub fn phrase_vector(&self, phrase: u32) -> &[f32] {
        self.phrase_vectors().row(phrase).unwrap_or_default()
    }

    /// The vector of a fact, of length 1.
    pub fn fact_vector(&self, fact: u32) -> &[f32] {
        self.fact_vectors().row(fact).unwrap_or_default()
    }

    /// The `k` facts most like `query`, and the least and largest likeness of any fact, exactly. `None` without facts.
    pub(crate) fn nearest_facts(&self, query: &[f32], k: usize) -> Option<Extremes> {
        self.fact_codes.extremes(&self.fact_vectors, query, k)
    }

    /// One vector of length 1 per phrase.
    pub(crate) fn phrase_vectors(&self) -> &VectorFile {
        &self.phrase_vectors
    }

    /// One vector of length 1 per fact.
    pub(crate) fn fact_vectors(&self) -> &VectorFile {
        &self.fact_vectors
    }
}

fn open_facts(path: &Path, phrases: usize, relations: usize) -> Result<[Column<u32>; 3], IndexError> {
    let mut columns = ColumnFile::open(path)?;
    let facts: [Column<u32>; 3] = [columns.take()?, columns.take()?, columns.take()?];
    let fit = |column: &[u32], below: usize| {
        column.len() == facts[0].len() && column.iter().all(|&number| (number as usize) < below)
    };
    if fit(&facts[0], phrases) && fit(&facts[1], relations) && fit(&facts[2], phrases) {
        Ok(facts)
    } else {
        Err(columns.corrupt("a fact names what is not there"))
    }
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod growth;
#[cfg(test)]
mod tests;
