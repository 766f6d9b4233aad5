//! Names, neighbors and triples of single passages.

use crate::error::IndexError;
use crate::graph::TripleOrigin;
use crate::index::Index;
use crate::store::PassageName;
use crate::triple::Triple;

/// IDs of the chunks before and after a chunk of the same document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkSiblings {
    /// ID of the chunk before. `None` if there is none.
    pub previous: Option<String>,
    /// ID of the chunk after. `None` if there is none.
    pub next: Option<String>,
}

/// Source of the triples of a passage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TripleSource {
    /// No triples are known.
    None,
    /// The document brought them.
    Given,
    /// An extractor found them.
    Extracted,
}

impl Index {
    /// Reads ID and title of the passage with this number.
    ///
    /// # Errors
    /// If there is no such passage, or the store is damaged.
    pub fn passage_name(&self, number: u32) -> Result<PassageName, IndexError> {
        self.snapshot.store.name(number)
    }

    /// Returns the neighbors of a chunk: a long document is stored as the passages `ID#1`, `ID#2` and so on.
    ///
    /// # Errors
    /// If the store is damaged.
    pub fn chunk_siblings(&self, id: &str) -> Result<ChunkSiblings, IndexError> {
        let chunk = id.rsplit_once('#').and_then(|(name, number)| Some((name, number.parse::<u64>().ok()?)));
        let Some((document, number)) = chunk else { return Ok(ChunkSiblings::default()) };
        let stored = |number: Option<u64>| -> Result<Option<String>, IndexError> {
            let Some(id) = number.map(|number| format!("{document}#{number}")) else { return Ok(None) };
            Ok(self.number(&id)?.map(|_| id))
        };
        Ok(ChunkSiblings { previous: stored(number.checked_sub(1))?, next: stored(number.checked_add(1))? })
    }

    /// Reads the triples of the passage with this number, as they were given or extracted, and their source.
    ///
    /// # Errors
    /// If the graph is damaged.
    pub fn stated_triples(&self, number: u32) -> Result<(TripleSource, Vec<Triple>), IndexError> {
        let Some(graph) = self.graph() else { return Ok((TripleSource::None, Vec::new())) };
        let source = match graph.origin(number) {
            TripleOrigin::None => return Ok((TripleSource::None, Vec::new())),
            TripleOrigin::Given => TripleSource::Given,
            TripleOrigin::Extracted | TripleOrigin::Builtin => TripleSource::Extracted,
        };
        Ok((source, graph.triples(number)?))
    }
}
