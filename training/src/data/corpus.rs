//! Passages by id.

use std::collections::HashMap;

use super::question::Document;

/// The passages of a corpus by id.
#[derive(Debug, Default)]
pub struct Corpus {
    documents: Vec<Document>,
    by_id: HashMap<String, usize>,
}

impl Corpus {
    /// Takes them in their order.
    pub fn new(documents: Vec<Document>) -> Corpus {
        let by_id = documents.iter().enumerate().map(|(at, document)| (document.id.clone(), at)).collect();
        Corpus { documents, by_id }
    }

    /// The passage with this id.
    pub fn get(&self, id: &str) -> Option<&Document> {
        self.by_id.get(id).map(|&at| &self.documents[at])
    }

    /// Those of these ids that are there.
    pub fn all(&self, ids: &[String]) -> Vec<Document> {
        ids.iter().filter_map(|id| self.get(id).cloned()).collect()
    }

    /// All of them, in their order.
    pub fn documents(&self) -> &[Document] {
        &self.documents
    }
}
