//! What a commit is asked to change.

use std::collections::HashSet;

use crate::corpus::{Corpus, Document};
use crate::error::IndexError;

/// Documents to put into an index and to take out of it, all at once.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changes {
    /// Documents that are added, or take the place of the one with their id. Of one id there may be one.
    pub upsert: Vec<Document>,
    /// Ids of documents that are removed. Those that the index does not hold are passed over and reported; to name one
    /// twice says no more than once.
    pub delete: Vec<String>,
}

impl Changes {
    /// Adds or replaces `documents`.
    pub fn upsert(documents: impl IntoIterator<Item = Document>) -> Changes {
        Changes { upsert: documents.into_iter().collect(), delete: Vec::new() }
    }

    /// Removes the documents with these `ids`.
    pub fn delete(ids: impl IntoIterator<Item = String>) -> Changes {
        Changes { upsert: Vec::new(), delete: ids.into_iter().collect() }
    }

    /// Adds or replaces all documents of a corpus, which is read to its end.
    ///
    /// # Errors
    /// What is wrong with the corpus.
    pub fn corpus(corpus: &mut Corpus) -> Result<Changes, IndexError> {
        Ok(Changes { upsert: corpus.collect::<Result<_, _>>()?, delete: Vec::new() })
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.upsert.is_empty() && self.delete.is_empty()
    }

    /// Refuses what no corpus could hold, and what contradicts itself.
    pub(super) fn check(&self) -> Result<(), IndexError> {
        let refused = |id: &str, message| Err(IndexError::BadChange { id: id.to_owned(), message });
        let mut seen = HashSet::with_capacity(self.upsert.len());
        for document in &self.upsert {
            if document.id.is_empty() {
                return refused("", "an id is empty");
            }
            if document.text.trim().is_empty() {
                return refused(&document.id, "its text is empty");
            }
            if !seen.insert(document.id.as_str()) {
                return refused(&document.id, "it is there twice");
            }
        }
        match self.delete.iter().find(|id| seen.contains(id.as_str())) {
            Some(id) => refused(id, "it is to be put in and taken out at once"),
            None => Ok(()),
        }
    }
}
