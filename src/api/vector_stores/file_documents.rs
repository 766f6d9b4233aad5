//! Conversion of uploaded files to documents of an index.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use waymark_index::{Corpus, CorpusOptions, Document, IndexError, ReadLimits, TokenCounter};
use waymark_runtime::embedding::TextEmbedder;

use super::chunking::{self, ChunkSizes};
use super::document_size::{memory_bytes, stored_bytes};
use super::record::{AttachedFile, IndexingFault, chunk_id};
use crate::api::library::shortened;

/// Maximum size of a file, decompressed, and of its documents in memory, as a multiple of the limit of uploads.
pub(super) const EXPANSION: u64 = 8;

/// File that was read to be indexed.
#[derive(Debug)]
pub(super) struct ReadFile {
    pub(super) id: String,
    /// Record of the file when it was read.
    pub(super) attached: AttachedFile,
    pub(super) content: FileContent,
    /// Time that the reading took.
    pub(super) reading: Duration,
}

/// Content of a file.
#[derive(Debug, Default)]
pub(super) struct FileContent {
    /// Documents that are still to be indexed.
    pub(super) documents: Vec<Document>,
    /// Number of all documents.
    pub(super) chunks: u64,
    /// Size of all documents with their metadata, in bytes.
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
    /// Number of documents at the beginning that are indexed already.
    pub(super) indexed: u64,
    /// Maximum memory that all documents take, in bytes.
    pub(super) limit: u64,
    /// Limits on the reading of the file.
    pub(super) limits: ReadLimits,
}

impl DocumentReader {
    /// Reads the documents.
    ///
    /// # Errors
    /// If the file cannot be read within its limits, a document is refused, or all take more than the limit.
    pub(super) fn read(self) -> Result<FileContent, IndexingFault> {
        let counting = Arc::clone(&self.embedder);
        let tokens = TokenCounter::new(self.embedder.max_tokens(), move |text| counting.count_tokens(text));
        let options = CorpusOptions { limits: self.limits.clone(), ..chunking::options(self.sizes) };
        let corpus = Corpus::open(&self.path, &options).map_err(|error| unreadable(&error))?;
        let mut content = FileContent::default();
        let mut memory = 0;
        // A small compressed file may hold more than the memory does, so the documents are counted one by one.
        for document in corpus.measured(tokens) {
            content.chunks += 1;
            let document = self.named(document.map_err(|error| unreadable(&error))?, content.chunks);
            document.check().map_err(|error| refused(content.chunks, &error))?;
            content.bytes += stored_bytes(&document);
            memory += memory_bytes(&document);
            if memory > self.limit {
                let message = format!("the chunks of the file take more than {} bytes of memory: split it", self.limit);
                return Err(fault("invalid_file", &message));
            }
            if content.chunks > self.indexed {
                content.documents.push(document);
            }
        }
        Ok(content)
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

/// Maps the reason why no commit takes a document.
fn refused(number: u64, error: &IndexError) -> IndexingFault {
    match error {
        IndexError::BadChange { message, .. } => fault("invalid_file", &format!("chunk {number}: {message}")),
        error => unreadable(error),
    }
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
            indexed: 0,
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
        let documents = reader(path, attributes, 5000).read().unwrap().documents;
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
        let content = read(20_000).unwrap();
        let metadata = |document: &Document| serde_json::to_string(&document.metadata).unwrap().len();
        let size: usize = content.documents.iter().map(|document| 4 + metadata(document)).sum();
        assert_eq!((content.documents.len(), content.chunks, content.bytes), (10, 10, size as u64));
        assert_eq!(content.documents[9].id, "file-1#10");
        let rest = DocumentReader { indexed: 7, ..reader(path.clone(), attributes.clone(), 20_000) }.read().unwrap();
        assert_eq!(rest.documents, content.documents[7..]);
        assert_eq!((rest.chunks, rest.bytes), (10, content.bytes));
        let refused = read(2000).unwrap_err();
        assert_eq!(refused.code, "invalid_file");
        assert!(refused.message.contains("more than 2000 bytes of memory"), "{}", refused.message);
        let limited = reader(path.clone(), attributes.clone(), 1000);
        let refused = DocumentReader { limit: 20_000, ..limited }.read().unwrap_err();
        assert_eq!(refused.code, "unsupported_file");
        assert!(refused.message.contains("more than 1000 bytes, decompressed"), "{}", refused.message);
    }

    #[test]
    fn small_records_and_triples_are_counted_by_their_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let records: String = (0..1000).map(|number| format!("{{\"text\":\"{number}\"}}\n")).collect();
        let triples = json!({"text": "a", "triples": vec![["a", "b", "c"]; 2000]}).to_string();
        for content in [records, triples] {
            std::fs::write(&path, &content).unwrap();
            let refused = reader(path.clone(), Map::new(), 500_000).read().unwrap_err();
            assert!(refused.message.contains("more than 500000 bytes of memory"), "{}", refused.message);
        }
    }

    #[test]
    fn documents_that_no_commit_takes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let large = json!({"text": "a", "note": "x".repeat(300_000)});
        std::fs::write(&path, format!("{{\"text\":\"b\"}}\n{large}\n")).unwrap();
        let refused = reader(path, Map::new(), 1 << 20).read().unwrap_err();
        assert_eq!(refused.code, "invalid_file");
        assert!(refused.message.contains("chunk 2: the metadata is longer"), "{}", refused.message);
    }
}
