//! Conversion of uploaded files to documents of an index.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};
use waymark_index::{Corpus, CorpusOptions, Document, IndexError, ReadLimits, TokenCounter};
use waymark_runtime::embedding::TextEmbedder;

use super::chunking::{self, ChunkSizes};
use super::record::{AttachedFile, IndexingFault, chunk_id};
use crate::api::library::shortened;

/// Maximum size of a file, decompressed, and of its documents, as a multiple of the limit of uploads.
pub(super) const EXPANSION: u64 = 8;

/// Documents of one file.
#[derive(Debug)]
pub(super) struct ReadFile {
    pub(super) id: String,
    /// Record of the file when it was read.
    pub(super) attached: AttachedFile,
    pub(super) documents: Vec<Document>,
    /// Size of the texts, in bytes.
    pub(super) bytes: u64,
}

/// Reader of the documents of one file.
pub(super) struct DocumentReader {
    pub(super) path: PathBuf,
    pub(super) id: String,
    pub(super) filename: String,
    pub(super) attributes: Map<String, Value>,
    pub(super) sizes: Option<ChunkSizes>,
    pub(super) embedder: Arc<dyn TextEmbedder>,
    /// Maximum size of all documents with their metadata, in bytes.
    pub(super) limit: u64,
    /// Limits on the reading of the file.
    pub(super) limits: ReadLimits,
}

impl DocumentReader {
    /// Reads the documents. Also returns the size of their texts.
    ///
    /// # Errors
    /// If the file cannot be read within its limits, or its documents are larger than the limit.
    pub(super) fn read(self) -> Result<(Vec<Document>, u64), IndexingFault> {
        let counting = Arc::clone(&self.embedder);
        let tokens = TokenCounter::new(self.embedder.max_tokens(), move |text| counting.count_tokens(text));
        let options = CorpusOptions { limits: self.limits.clone(), ..chunking::options(self.sizes) };
        let corpus = Corpus::open(&self.path, &options).map_err(|error| unreadable(&error))?;
        let mut documents = Vec::new();
        let mut bytes = 0;
        let mut total = 0;
        // A small compressed file may hold more than the memory does, so the documents are counted one by one.
        for (document, number) in corpus.measured(tokens).zip(1..) {
            let document = self.named(document.map_err(|error| unreadable(&error))?, number);
            let text = document.content().len() as u64;
            bytes += text;
            total += text + metadata_bytes(&document);
            if total > self.limit {
                let message = format!("the file holds more than {} bytes of text and metadata: split it", self.limit);
                return Err(fault("invalid_file", &message));
            }
            documents.push(document);
        }
        Ok((documents, bytes))
    }

    /// Names a document after the file and puts the attributes of the file before its own metadata.
    fn named(&self, document: Document, number: u64) -> Document {
        let Document { id: own, title, text, triples, metadata } = document;
        let mut metadata = metadata.unwrap_or_default();
        let name = self.path.file_name().map(|name| format!("{}#", name.to_string_lossy())).unwrap_or_default();
        // Records bring IDs of their own, which are unique only within their file; chunks are named after the file.
        if !own.starts_with(&name) {
            metadata.entry("record_id").or_insert(Value::String(own));
        }
        metadata.insert("filename".to_owned(), self.filename.clone().into());
        // Search results have room for only the first values, and clients expect those that they set.
        let mut all = self.attributes.clone();
        for (name, value) in metadata {
            all.entry(name).or_insert(value);
        }
        Document { id: chunk_id(&self.id, number), title, text, triples, metadata: Some(all) }
    }
}

/// Returns the size of the metadata of a document as JSON, in bytes.
fn metadata_bytes(document: &Document) -> u64 {
    serde_json::to_vec(&document.metadata).map_or(0, |json| json.len() as u64)
}

/// Maps the error of a file to what clients are told.
fn unreadable(error: &IndexError) -> IndexingFault {
    match error {
        IndexError::UnsupportedFile { message, .. } => fault("unsupported_file", message),
        IndexError::BadRecord { location, message } | IndexError::BadCorpus { location, message } => {
            fault("invalid_file", &format!("line {}: {message}", location.line))
        }
        IndexError::EmptyCorpus { .. } => fault("invalid_file", "the file holds no text"),
        // Not an error of the disk: the caller ended the reading, and knows why.
        IndexError::Io { source, .. } if source.kind() == ErrorKind::TimedOut => {
            fault("server_error", "the file was not read to its end")
        }
        IndexError::DuplicateId { id, .. } => fault("invalid_file", &format!("the ID {id:?} occurs twice")),
        error => {
            tracing::error!(%error, "cannot read an uploaded file");
            fault("server_error", "the file cannot be read")
        }
    }
}

/// Creates the reason why a file could not be indexed.
pub(super) fn fault(code: &str, message: &str) -> IndexingFault {
    IndexingFault { code: code.to_owned(), message: shortened(message.to_owned()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use waymark_runtime::embedding::Embedding;

    use super::*;

    /// Reader of the file `a.jsonl` at `path`.
    fn reader(path: PathBuf, attributes: Map<String, Value>, limit: u64) -> DocumentReader {
        DocumentReader {
            path,
            id: "file-1".to_owned(),
            filename: "a.jsonl".to_owned(),
            attributes,
            sizes: None,
            embedder: Arc::new(Embedding::Mock),
            limit,
            limits: ReadLimits { bytes: Some(limit), go_on: None },
        }
    }

    #[test]
    fn attributes_come_before_the_metadata_of_a_document_and_replace_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, json!({"id": "x", "text": "four", "note": "a", "kind": "own"}).to_string()).unwrap();
        let attributes = json!({"department": "legal", "kind": "set"}).as_object().unwrap().clone();
        let (documents, _) = reader(path, attributes, 5000).read().unwrap();
        let expected = json!({
            "department": "legal", "kind": "set", "note": "a", "record_id": "x", "filename": "a.jsonl",
        });
        // Compared as text, because two objects are equal in any order.
        assert_eq!(json!(documents[0].metadata).to_string(), expected.to_string());
    }

    #[test]
    fn documents_are_counted_with_their_metadata() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let line =
            |number: usize| json!({"id": number.to_string(), "text": "four", "note": "x".repeat(100)}).to_string();
        std::fs::write(&path, (0..10).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let attributes: Map<String, Value> = [("kind".to_owned(), "y".repeat(200).into())].into_iter().collect();
        let read = |limit| reader(path.clone(), attributes.clone(), limit).read();
        let (documents, bytes) = read(5000).unwrap();
        assert_eq!((documents.len(), bytes), (10, 40));
        assert_eq!(documents[9].id, "file-1#10");
        let refused = read(2000).unwrap_err();
        assert_eq!(refused.code, "invalid_file");
        assert!(refused.message.contains("more than 2000 bytes of text and metadata"), "{}", refused.message);
        let refused = read(1000).unwrap_err();
        assert_eq!(refused.code, "unsupported_file");
        assert!(refused.message.contains("more than 1000 bytes, decompressed"), "{}", refused.message);
    }
}
