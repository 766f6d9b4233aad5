//! Graph of phrases and passages, searched beside the passages themselves.
//!
//! Triples of passages are normalized to phrases (their subjects and objects) and facts (subject, relation, object).
//! Phrases and passages are the nodes of an undirected weighted graph, as in HippoRAG 2. Phrases are numbered in code
//! point order, facts in the order of subject, relation and object.

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

/// Immutable graph of a snapshot. Lookups of unknown numbers return empty values.
#[derive(Debug)]
pub struct Graph {
    triples: TripleFile,
    /// Origin of triples that the file marks only as extracted: the manifest's extractor, if it names exactly one.
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
    /// Opens the graph in the folder `dir` over this number of passages.
    pub(crate) fn open(dir: &Path, info: &GraphInfo, passages: usize, dims: usize) -> Result<Graph, IndexError> {
        let path = |name| dir.join(name);
        let phrases = StringTable::open(&path(graph_file::PHRASES))?;
        let relations = StringTable::open(&path(graph_file::RELATIONS))?;
        let facts = open_facts(&path(graph_file::FACTS), phrases.len(), relations.len())?;
        let count = facts[0].len();
        let nodes = phrases.len() + passages;
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

    /// Number of phrases.
    pub fn phrases(&self) -> usize {
        self.phrases.len()
    }

    /// Number of facts.
    pub fn facts(&self) -> usize {
        self.facts[0].len()
    }

    /// Number of passages.
    pub fn passages(&self) -> usize {
        self.triples.passages()
    }

    /// Normalized text of a phrase.
    pub fn phrase(&self, phrase: u32) -> &str {
        self.phrases.get(phrase)
    }

    /// Returns the number of a phrase, given in normal form. `None` if the graph does not contain it.
    pub fn phrase_id(&self, text: &str) -> Option<u32> {
        self.phrases.find(text)
    }

    /// Returns a fact.
    pub fn fact(&self, fact: u32) -> GraphFact<'_> {
        let [subject, relation, object] =
            // No phrase or relation has the number `u32::MAX`, so an unknown fact has empty texts.
            [0, 1, 2].map(|part: usize| self.facts[part].get(fact as usize).copied().unwrap_or(u32::MAX));
        GraphFact { subject, relation: self.relations.get(relation), object }
    }

    /// Text of a fact as embedded; see [`phrase::fact`].
    pub fn fact_text(&self, fact: u32) -> String {
        let GraphFact { subject, relation, object } = self.fact(fact);
        phrase::fact(self.phrase(subject), relation, self.phrase(object))
    }

    /// Passages with a triple that names this phrase, in order.
    pub fn passages_of(&self, phrase: u32) -> &[u32] {
        self.passages_of.get(phrase)
    }

    /// Passages that state this fact, in order.
    pub fn passages_of_fact(&self, fact: u32) -> &[u32] {
        self.passages_of_fact.get(fact)
    }

    /// Facts that this passage states, in order.
    pub fn facts_of(&self, passage: u32) -> &[u32] {
        self.facts_of.get(passage)
    }

    /// Synonyms of a phrase in order, and their cosines.
    pub fn synonyms(&self, phrase: u32) -> (&[u32], &[f32]) {
        self.synonyms.get(phrase)
    }

    /// Phrases and synonyms, from which those of a changed graph are updated.
    fn as_earlier(&self) -> PreviousSynonyms<'_> {
        PreviousSynonyms { phrases: &self.phrases, synonyms: &self.synonyms }
    }

    /// Reads the triples of a passage as they were extracted or given.
    ///
    /// # Errors
    /// If the record is damaged.
    pub fn triples(&self, passage: u32) -> Result<Vec<Triple>, IndexError> {
        self.triples.get(passage)
    }

    /// Origin of the triples of a passage.
    pub(crate) fn origin(&self, passage: u32) -> TripleOrigin {
        match self.triples.origin(passage) {
            TripleOrigin::Extracted => self.extracted,
            other => other,
        }
    }

    /// Edges of the graph. Nodes are the phrases by number, then the passages, numbered from [`Graph::phrases`].
    pub fn adjacency(&self) -> Adjacency<'_> {
        self.adjacency.view()
    }

    /// Vector of a phrase, of length 1.
    pub fn phrase_vector(&self, phrase: u32) -> &[f32] {
        self.phrase_vectors().row(phrase).unwrap_or_default()
    }

    /// Vector of a fact, of length 1.
    pub fn fact_vector(&self, fact: u32) -> &[f32] {
        self.fact_vectors().row(fact).unwrap_or_default()
    }

    /// Returns the `k` facts most similar to `query`, with the smallest and largest similarity of any fact, all exact.
    /// `None` if there are no facts.
    pub(crate) fn nearest_facts(&self, query: &[f32], k: usize) -> Option<Extremes> {
        self.fact_codes.extremes(&self.fact_vectors, query, k)
    }

    /// Vectors of the phrases, each of length 1.
    pub(crate) fn phrase_vectors(&self) -> &VectorFile {
        &self.phrase_vectors
    }

    /// Vectors of the facts, each of length 1.
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
