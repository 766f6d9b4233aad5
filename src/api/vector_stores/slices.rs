//! Slices of long files: their documents are committed one slice after the other, so other keys, removals and drains
//! wait for a slice and not for a file.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use waymark_index::Document;

use super::file_documents::ReadFile;
use super::ingestion::{self, ChunkRange};
use super::record::AttachedFile;
use super::store::VectorStore;
use crate::api::blocking::run_blocking;
use crate::api::error::ApiError;
use crate::api::files::registry::unwritable;
use crate::api::state::AppState;

/// Maximum size of a slice, in documents and triples. A larger document is a slice of its own.
const SLICE: usize = 1024;

/// Maximum size of the texts of a slice, in bytes. A larger document is a slice of its own.
const SLICE_BYTES: usize = 16 << 20;

/// Returns the number of documents that the first slice holds.
fn first<'d>(documents: impl Iterator<Item = &'d Document>) -> usize {
    let mut size = 0;
    let mut bytes = 0;
    let mut count = 0;
    for document in documents {
        size += 1 + document.triples.as_ref().map_or(0, Vec::len);
        bytes += document.text.len();
        if count > 0 && (size > SLICE || bytes > SLICE_BYTES) {
            break;
        }
        count += 1;
    }
    count
}

/// Returns `true` if the documents of `files` fit one slice.
pub(super) fn fit_one(files: &[ReadFile]) -> bool {
    let documents = || files.iter().flat_map(|file| &file.content.documents);
    first(documents()) == documents().count()
}

/// Commits the documents of a file in slices. If the server drains, the rest of the file is left to its next start. If
/// another key waits, the file waits for its next turn, but not before the slices have taken as long as the reading,
/// which has to be repeated then.
pub(super) async fn commit(state: &AppState, store: &Arc<VectorStore>, file: ReadFile) -> Result<(), ApiError> {
    let stores = state.vector_stores()?;
    let ReadFile { id, mut attached, content, reading } = file;
    let chunks = content.chunks;
    let mut rest = VecDeque::from(content.documents);
    let started = Instant::now();
    loop {
        let count = first(rest.iter());
        let slice: Vec<Document> = rest.drain(..count).collect();
        let indexed = chunks - rest.len() as u64;
        let mut surplus = Vec::new();
        if rest.is_empty() {
            surplus.push(ChunkRange { file: id.clone(), from: chunks + 1, recorded: attached.chunks });
        }
        let made = ingestion::apply(state, store, slice, surplus).await;
        if rest.is_empty() || made.is_err() {
            return ingestion::finish_commit(store, &id, &attached, made, chunks, content.bytes).await;
        }
        let advanced = advance(store, &id, &attached, indexed, content.bytes).await?;
        // The file was changed, is being removed, or its store was deleted.
        let Some(advanced) = advanced else { return Ok(()) };
        attached = advanced;
        let is_turn_over = started.elapsed() >= reading && stores.others_wait(store.owner);
        if is_turn_over || ingestion::is_draining(state) {
            return Ok(());
        }
    }
}

/// Writes the progress of a file; see [`VectorStore::advance`].
async fn advance(
    store: &Arc<VectorStore>,
    id: &str,
    seen: &AttachedFile,
    indexed: u64,
    bytes: u64,
) -> Result<Option<AttachedFile>, ApiError> {
    let store = Arc::clone(store);
    let id = id.to_owned();
    let seen = seen.clone();
    run_blocking(move || store.advance(&id, &seen, indexed, bytes).map_err(unwritable)).await
}

#[cfg(test)]
mod tests {
    use waymark_index::Triple;

    use super::*;

    fn document(bytes: usize, triples: usize) -> Document {
        let triples = Some(vec![Triple::new("a", "b", "c"); triples]);
        Document { id: "a".to_owned(), title: String::new(), text: "x".repeat(bytes), triples, metadata: None }
    }

    #[test]
    fn a_slice_is_bounded_by_documents_triples_and_bytes() {
        for (documents, expected) in [
            (vec![document(1, 0); SLICE + 1], SLICE),
            (vec![document(1, SLICE / 2 - 1); 3], 2),
            (vec![document(SLICE_BYTES / 2, 0); 3], 2),
            (vec![document(1, 2 * SLICE); 2], 1),
            (vec![document(2 * SLICE_BYTES, 0)], 1),
            (vec![], 0),
        ] {
            assert_eq!(first(documents.iter()), expected);
        }
    }
}
