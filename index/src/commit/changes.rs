//! What a commit is asked to change.

use std::collections::{HashMap, HashSet};

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
    /// Texts that were cut into chunks, by their names, and how many chunks of each are put in: the ids of chunks are the
    /// name, `#`, and their numbers from 1. The chunks of these names that follow are removed, where the index holds them,
    /// and so is, where there are chunks, the document that has the name itself; what is put in stays.
    pub chunked: Vec<(String, u64)>,
    /// Remove every document that is not put in.
    pub mirror: bool,
}

impl Changes {
    /// Adds or replaces `documents`.
    pub fn upsert(documents: impl IntoIterator<Item = Document>) -> Changes {
        Changes { upsert: documents.into_iter().collect(), ..Changes::default() }
    }

    /// Removes the documents with these `ids`.
    pub fn delete(ids: impl IntoIterator<Item = String>) -> Changes {
        Changes { delete: ids.into_iter().collect(), ..Changes::default() }
    }

    /// Adds or replaces all documents of a corpus, which is read to its end. Of a file that has fewer chunks than before,
    /// and of a record that is cut into fewer, those that are too many are removed.
    ///
    /// # Errors
    /// What is wrong with the corpus.
    pub fn corpus(corpus: &mut Corpus) -> Result<Changes, IndexError> {
        let upsert = corpus.by_ref().collect::<Result<_, _>>()?;
        Ok(Changes { upsert, chunked: corpus.take_chunked(), ..Changes::default() })
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.upsert.is_empty() && self.delete.is_empty() && self.chunked.is_empty() && !self.mirror
    }

    /// The ids that are named, those that are put in first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.upsert.iter().map(|document| document.id.as_str()).chain(self.delete.iter().map(String::as_str))
    }

    /// Refuses changes that cannot be made together: what each of them comes to may not hang on another.
    pub(super) fn check_apart(all: &[Changes]) -> Result<(), IndexError> {
        let refused = |id: &str, message| Err(IndexError::BadChange { id: id.to_owned(), message });
        let mut named = HashMap::new();
        for (number, changes) in all.iter().enumerate() {
            if all.len() > 1 && (changes.mirror || !changes.chunked.is_empty()) {
                return refused("", "what removes documents that it does not name is made alone");
            }
            for id in changes.ids() {
                if *named.entry(id).or_insert(number) != number {
                    return refused(id, "it is changed by two at once");
                }
            }
        }
        Ok(())
    }

    /// Refuses what no corpus could hold, and what contradicts itself. Every commit begins with it.
    ///
    /// # Errors
    /// What is wrong, and with which document.
    pub fn check(&self) -> Result<(), IndexError> {
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
