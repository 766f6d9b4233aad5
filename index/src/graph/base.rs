//! Graph of a base snapshot, in mapped files.

use std::path::Path;

use super::adjacency::AdjacencyFile;
use super::columns::{Column, ColumnFile};
use super::lists::Lists;
use super::synonyms::Synonyms;
use super::table::StringTable;
use super::triples::{TripleFile, TripleOrigin};
use crate::dense::{Codes, VectorFile};
use crate::error::IndexError;
use crate::layout::graph_file;
use crate::manifest::GraphInfo;
use crate::partition_point::partition_point;

/// Immutable graph of a base snapshot. Lookups of unknown numbers return empty values.
#[derive(Debug)]
pub(super) struct BaseGraph {
    pub(super) triples: TripleFile,
    /// Origin of triples that the file marks only as extracted: the manifest's extractor, if it names exactly one.
    pub(super) extracted: TripleOrigin,
    pub(super) phrases: StringTable,
    pub(super) relations: StringTable,
    pub(super) facts: [Column<u32>; 3],
    pub(super) passages_of: Lists,
    pub(super) passages_of_fact: Lists,
    pub(super) facts_of: Lists,
    pub(super) phrase_vectors: VectorFile,
    pub(super) fact_vectors: VectorFile,
    pub(super) fact_codes: Codes,
    pub(super) synonyms: Synonyms,
    pub(super) adjacency: AdjacencyFile,
    /// Number of passages that have triples of each [`TripleOrigin`].
    pub(super) origins: [u64; 4],
    /// Number of triples.
    pub(super) stated: u64,
    /// Number of connected node pairs.
    pub(super) edges: u64,
}

impl BaseGraph {
    /// Opens the graph in the folder `dir` over this number of passages.
    pub(super) fn open(dir: &Path, info: &GraphInfo, passages: usize, dims: usize) -> Result<BaseGraph, IndexError> {
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
        let triples = TripleFile::open(&path(graph_file::TRIPLES), passages)?;
        let extracted = TripleOrigin::Extracted.resolved_with(info);
        let mut origins = [0; 4];
        for passage in (0..).take(passages) {
            let origin = triples.origin(passage);
            origins[if origin == TripleOrigin::Extracted { extracted } else { origin } as usize] += 1;
        }
        Ok(BaseGraph {
            triples,
            origins,
            stated: info.triples,
            edges: info.edges,
            extracted,
            passages_of: Lists::read(&mut mentions, phrases.len(), passages)?,
            passages_of_fact: Lists::read(&mut mentions, count, passages)?,
            facts_of: Lists::read(&mut mentions, passages, count)?,
            phrase_vectors: VectorFile::open(&path(graph_file::PHRASE_VECTORS), phrases.len(), dims)?,
            fact_vectors: VectorFile::open(&path(graph_file::FACT_VECTORS), count, dims)?,
            fact_codes: Codes::open(&path(graph_file::FACT_CODES), count, dims)?,
            synonyms: Synonyms::open(&path(graph_file::SYNONYMS), phrases.len())?,
            adjacency: AdjacencyFile::open(&path(graph_file::ADJACENCY), nodes)?,
            phrases,
            relations,
            facts,
        })
    }

    /// Returns a fact by the numbers of its parts.
    pub(super) fn fact(&self, fact: u32) -> [u32; 3] {
        [0, 1, 2].map(|part: usize| self.facts[part].get(fact as usize).copied().unwrap_or(u32::MAX))
    }

    /// Returns the number of a fact.
    pub(super) fn find_fact(&self, numbers: [u32; 3]) -> Option<u32> {
        let count = u32::try_from(self.facts[0].len()).ok()?;
        let fact = partition_point(count, |fact| self.fact(fact) < numbers);
        (fact < count && self.fact(fact) == numbers).then_some(fact)
    }

    /// Origin of the triples of a passage.
    pub(super) fn origin(&self, passage: u32) -> TripleOrigin {
        match self.triples.origin(passage) {
            TripleOrigin::Extracted => self.extracted,
            other => other,
        }
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
