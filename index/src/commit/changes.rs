//! Changes requested from a commit.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::corpus::{Corpus, Document, LARGEST_TITLE};
use crate::error::IndexError;

/// Maximum length of an ID in bytes.
const MOST_ID: usize = 4096;

/// Maximum length of the metadata of a document as JSON, in bytes.
const MOST_METADATA: usize = 256 << 10;

/// Maximum number of triples of a document. Each may need two embeddings.
const MOST_TRIPLES: usize = 2048;

/// Maximum length of a subject, relation or object in bytes.
const MOST_PHRASE: usize = 16 << 10;

/// Documents to add to and to remove from an index, in one commit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// Documents to add. Each replaces the document with the same ID, if any. IDs must be distinct.
    pub upsert: Vec<Document>,
    /// IDs of documents to remove. Unknown IDs are reported and otherwise ignored; repetitions have no effect.
    pub delete: Vec<String>,
    /// Names of chunked texts, with the number of chunks of each. Chunk IDs are the name, `#`, and a number from 1. The
    /// commit removes further chunks of these names from the index, and the document whose ID is the name itself if
    /// there are chunks. Documents in `upsert` are never removed.
    pub chunked: Vec<(String, u64)>,
    /// If `true`, the commit removes every document that is not in `upsert`.
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

    /// Adds or replaces all documents of a corpus, which is read to its end. Removes surplus chunks of files and
    /// records that now have fewer chunks than before.
    ///
    /// # Errors
    /// If the corpus is invalid.
    pub fn corpus(corpus: &mut Corpus) -> Result<Changes, IndexError> {
        let upsert = corpus.by_ref().collect::<Result<_, _>>()?;
        Ok(Changes { upsert, chunked: corpus.take_chunked(), ..Changes::default() })
    }

    /// Returns `true` if no change is requested.
    pub fn is_empty(&self) -> bool {
        self.upsert.is_empty() && self.delete.is_empty() && self.chunked.is_empty() && !self.mirror
    }

    /// Iterates over the IDs to add or replace, then over those to remove.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.upsert.iter().map(|document| document.id.as_str()).chain(self.delete.iter().map(String::as_str))
    }

    /// Refuses concurrent changes that may interact: the effect of one must not depend on another.
    pub(super) fn check_apart(all: &[Changes]) -> Result<(), IndexError> {
        let refused = |id: &str, message| Err(IndexError::BadChange { id: id.to_owned(), message });
        let mut named = HashMap::new();
        for (number, changes) in all.iter().enumerate() {
            if all.len() > 1 && (changes.mirror || !changes.chunked.is_empty()) {
                return refused("", "a change that removes unnamed documents must be committed alone");
            }
            for id in changes.ids() {
                if *named.entry(id).or_insert(number) != number {
                    return refused(id, "two concurrent changes name this document");
                }
            }
        }
        Ok(())
    }

    /// Refuses changes that are invalid, too large, or contradict themselves. Every commit begins with this check.
    ///
    /// # Errors
    /// [`IndexError::BadChange`] with the document and the reason.
    pub fn check(&self) -> Result<(), IndexError> {
        let refused = |id: &str, message| Err(IndexError::BadChange { id: id.to_owned(), message });
        let mut seen = HashSet::with_capacity(self.upsert.len());
        for document in &self.upsert {
            document.check()?;
            if !seen.insert(document.id.as_str()) {
                return refused(&document.id, "the id occurs twice");
            }
        }
        match self.delete.iter().find(|id| seen.contains(id.as_str())) {
            Some(id) => refused(id, "the document is both added and removed"),
            None => Ok(()),
        }
    }
}

impl Document {
    /// Refuses a document that is invalid or too large for a commit.
    ///
    /// # Errors
    /// [`IndexError::BadChange`] with the reason.
    pub fn check(&self) -> Result<(), IndexError> {
        let refused = |message| Err(IndexError::BadChange { id: self.id.clone(), message });
        if self.id.is_empty() {
            return refused("the id is empty");
        }
        if self.text.trim().is_empty() {
            return refused("the text is empty");
        }
        oversized(self).map_or(Ok(()), refused)
    }
}

/// Returns the reason why a document is too large. `None` if it is not. The limits keep a commit short, since other
/// changes wait for it.
fn oversized(document: &Document) -> Option<&'static str> {
    let long = |text: &String| text.len() > MOST_PHRASE;
    let triples = document.triples.as_deref().unwrap_or_default();
    if document.id.len() > MOST_ID {
        return Some("the id is longer than 4096 bytes");
    }
    if document.title.len() > LARGEST_TITLE {
        return Some("the title is longer than 16384 bytes");
    }
    if triples.len() > MOST_TRIPLES {
        return Some("it has more than 2048 triples: split its text into several documents");
    }
    if triples.iter().any(|triple| long(&triple.subject) || long(&triple.relation) || long(&triple.object)) {
        return Some("a part of a triple is longer than 16384 bytes");
    }
    let metadata = document.metadata.as_ref().and_then(|metadata| serde_json::to_vec(metadata).ok());
    metadata.filter(|json| json.len() > MOST_METADATA).map(|_| "the metadata is longer than 262144 bytes as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::triple::Triple;

    #[test]
    fn a_document_that_would_hold_up_others_is_refused() {
        let small = || Document {
            id: "a".to_owned(),
            title: String::new(),
            text: "text".to_owned(),
            triples: None,
            metadata: None,
        };
        let triple = |length| Triple::new("s".repeat(length), "is", "object");
        let note = |length| Some([("note".to_owned(), "x".repeat(length).into())].into_iter().collect());
        let of = |triples| Document { triples: Some(triples), ..small() };
        for (document, expected) in [
            (Document { id: "i".repeat(MOST_ID), ..small() }, None),
            (Document { id: "i".repeat(MOST_ID + 1), ..small() }, Some("id")),
            (Document { title: "t".repeat(LARGEST_TITLE), ..small() }, None),
            (Document { title: "t".repeat(LARGEST_TITLE + 1), ..small() }, Some("title")),
            (of(vec![triple(1); MOST_TRIPLES]), None),
            (of(vec![triple(1); MOST_TRIPLES + 1]), Some("2048 triples")),
            (of(vec![triple(MOST_PHRASE)]), None),
            (of(vec![triple(MOST_PHRASE + 1)]), Some("part of a triple")),
            (Document { metadata: note(MOST_METADATA - 11), ..small() }, None),
            (Document { metadata: note(MOST_METADATA), ..small() }, Some("metadata")),
        ] {
            assert_eq!(document.check().is_err(), expected.is_some());
            let refused = Changes::upsert([document]).check().err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), expected.is_some(), "{refused:?}");
            assert!(expected.is_none_or(|words| refused.is_some_and(|refused| refused.contains(words))));
        }
    }
}
