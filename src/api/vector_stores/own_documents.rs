//! Documents that clients add to vector stores by `/v1/documents`, besides the files.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use waymark_index::Index;

/// Documents of one vector store that are no chunks of its files.
#[derive(Debug, Default)]
pub(super) struct OwnDocuments {
    /// If `true`, a client has added documents since the process started.
    were_added: AtomicBool,
    /// Snapshot of the index that was measured last, and the size of its documents in bytes.
    measured: Mutex<(Weak<Index>, u64)>,
    /// Size of the documents that wait for their commit, in bytes.
    pending: Arc<AtomicU64>,
}

/// Room of documents that wait for their commit, given back when dropped.
#[derive(Debug)]
pub(crate) struct DocumentRoom {
    pending: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for DocumentRoom {
    fn drop(&mut self) {
        self.pending.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl OwnDocuments {
    /// Takes room for documents that a client adds. They may replace chunks of files, so all documents are measured from
    /// now on.
    pub(super) fn take_room(&self, bytes: u64) -> DocumentRoom {
        self.were_added.store(true, Ordering::SeqCst);
        self.pending.fetch_add(bytes, Ordering::SeqCst);
        DocumentRoom { pending: Arc::clone(&self.pending), bytes }
    }

    /// Size of the documents that wait for their commit, in bytes.
    pub(super) fn pending(&self) -> u64 {
        self.pending.load(Ordering::SeqCst)
    }

    /// Returns the size of all documents of an index in bytes, with their metadata. 0 if they are the `chunks` chunks of
    /// files, whose sizes are known. Reads a few bytes of each document once per snapshot.
    pub(super) fn measure(&self, index: &Arc<Index>, chunks: u64) -> u64 {
        if !self.were_added.load(Ordering::SeqCst) && index.manifest().passages == chunks {
            return 0;
        }
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::ptr::eq(measured.0.as_ptr(), Arc::as_ptr(index)) {
            let bytes = index.document_bytes().unwrap_or_else(|error| {
                tracing::error!(%error, "cannot measure the documents of a vector store");
                0
            });
            *measured = (Arc::downgrade(index), bytes);
        }
        measured.1
    }
}
