//! Passages of a corpus, by ID.

use std::collections::HashMap;

use super::rows::CorpusPassage;

/// Passages of a corpus, by ID and in their original order.
#[derive(Debug, Default)]
pub struct PassageCorpus {
    documents: Vec<CorpusPassage>,
    by_id: HashMap<String, usize>,
}

impl PassageCorpus {
    /// Creates a corpus that keeps the order of `documents`.
    pub fn new(documents: Vec<CorpusPassage>) -> PassageCorpus {
        let by_id = documents.iter().enumerate().map(|(at, document)| (document.id.clone(), at)).collect();
        PassageCorpus { documents, by_id }
    }

    /// Passage with this ID.
    pub fn get(&self, id: &str) -> Option<&CorpusPassage> {
        self.by_id.get(id).map(|&at| &self.documents[at])
    }

    /// Passages with these IDs, without the IDs that are not in the corpus.
    pub fn all(&self, ids: &[String]) -> Vec<CorpusPassage> {
        ids.iter().filter_map(|id| self.get(id).cloned()).collect()
    }

    /// All passages, in their original order.
    pub fn documents(&self) -> &[CorpusPassage] {
        &self.documents
    }
}
