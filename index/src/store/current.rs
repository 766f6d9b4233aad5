//! Passages of a snapshot: those of the base snapshot and those changed since.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{PassageName, PassageStore};
use crate::corpus::Document;
use crate::delta::DocumentDelta;
use crate::error::IndexError;
use crate::evidence::Passage;
use crate::extract::Passages;

/// Passages addressed by number or by ID. Numbers may have gaps; see [`DocumentDelta`].
#[derive(Debug, Clone)]
pub(crate) struct CurrentStore {
    pub(crate) base: Arc<PassageStore>,
    pub(crate) delta: Arc<DocumentDelta>,
}

impl CurrentStore {
    /// Number of passages.
    pub(crate) fn len(&self) -> usize {
        self.delta.live() as usize
    }

    /// Exclusive upper bound of the passage numbers.
    pub(crate) fn bound(&self) -> u32 {
        self.delta.bound()
    }

    /// Iterates over the numbers of the passages, in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.delta.live_numbers()
    }

    /// Reads the passage with this number, without its metadata.
    pub(crate) fn passage(&self, number: u32) -> Result<Passage, IndexError> {
        match self.delta.get(number) {
            None => self.base.passage(number),
            Some(document) => document.map(|document| document.passage()).ok_or_else(|| self.base.broken(number)),
        }
    }

    /// Reads ID and title of the passage with this number.
    pub(crate) fn name(&self, number: u32) -> Result<PassageName, IndexError> {
        match self.delta.get(number) {
            None => self.base.name(number),
            Some(document) => {
                let document = document.ok_or_else(|| self.base.broken(number))?;
                Ok(PassageName { id: document.id.clone(), title: document.title.clone() })
            }
        }
    }

    /// Reads the whole document with this number, without triples.
    pub(crate) fn document(&self, number: u32) -> Result<Document, IndexError> {
        match self.delta.get(number) {
            None => self.base.document(number),
            Some(document) => document.map(|document| document.document()).ok_or_else(|| self.base.broken(number)),
        }
    }

    /// Size of the document with this number in bytes: its ID, title, text and metadata.
    pub(crate) fn bytes(&self, number: u32) -> Result<u64, IndexError> {
        let Some(changed) = self.delta.get(number) else { return self.base.bytes(number) };
        let document = changed.ok_or_else(|| self.base.broken(number))?;
        let metadata = document.metadata.as_ref().and_then(|metadata| serde_json::to_vec(metadata).ok());
        let texts = document.id.len() + document.title.len() + document.text.len();
        Ok((texts + metadata.map_or(0, |json| json.len())) as u64)
    }

    /// Reads the metadata of the document with this number. `None` if it has none.
    pub(crate) fn metadata(&self, number: u32) -> Result<Option<Map<String, Value>>, IndexError> {
        match self.delta.get(number) {
            None => self.base.metadata(number),
            Some(document) => {
                document.map(|document| document.metadata.clone()).ok_or_else(|| self.base.broken(number))
            }
        }
    }

    /// Returns the numbers of all passages that may be chunks of these texts, and of some others. Reads no passage that
    /// has not changed since the base snapshot, unless its ID is that of a text or of a chunk.
    pub(crate) fn possible_chunks<'n>(&self, texts: impl Iterator<Item = &'n str>) -> Result<Vec<u32>, IndexError> {
        let mut numbers: Vec<u32> = self.delta.documents().map(|(number, _)| number).collect();
        for text in texts {
            let chunks = self.base.with_prefix(&format!("{text}#"))?;
            let unchanged = |number: &u32| self.delta.get(*number).is_none();
            numbers.extend(self.base.find(text)?.into_iter().chain(chunks).filter(unchanged));
        }
        Ok(numbers)
    }

    /// Returns the number of the passage with this ID.
    pub(crate) fn find(&self, id: &str) -> Result<Option<u32>, IndexError> {
        self.delta.find(id).map_or_else(|| self.base.find(id), Ok)
    }
}

/// Passages of a snapshot numbered without gaps, for an extractor.
#[derive(Debug)]
pub(crate) struct DensePassages<'a> {
    store: &'a CurrentStore,
    pub(crate) numbers: Vec<u32>,
}

impl<'a> DensePassages<'a> {
    pub(crate) fn of(store: &'a CurrentStore) -> DensePassages<'a> {
        DensePassages { numbers: store.numbers().collect(), store }
    }
}

impl Passages for DensePassages<'_> {
    fn len(&self) -> usize {
        self.numbers.len()
    }

    fn passage(&self, number: u32) -> Result<Passage, IndexError> {
        // An unknown number gives the error of the store.
        self.store.passage(self.numbers.get(number as usize).copied().unwrap_or(u32::MAX))
    }
}
