//! Vector stores and their files in OpenAI's format.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chunking::{self, UsedChunking};
use super::record::{AttachedFile, IndexingFault, IndexingStatus, StoreRecord};
use super::store::VectorStore;

/// Vector store.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VectorStore)]
pub struct VectorStoreObject {
    /// ID of the vector store, which `vector_store_ids`, `rag.index` and `?index=` accept.
    pub id: String,
    /// Always `vector_store`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created_at: u64,
    /// Name; may be null.
    #[schema(required)]
    pub name: Option<String>,
    /// Description; may be null.
    #[schema(required)]
    pub description: Option<String>,
    /// Size of the texts in the index with their metadata, in bytes. For an index that the server was started with, the
    /// size of its files.
    pub usage_bytes: u64,
    /// Numbers of files by status. An index that the server was started with has none.
    pub file_counts: FileCounts,
    /// `in_progress` while files are being indexed, and `completed` otherwise.
    pub status: IndexingStatus,
    /// Always null: vector stores stay until they are deleted.
    #[schema(required, value_type = Option<Object>)]
    pub expires_after: Option<Value>,
    /// Always null.
    #[schema(required)]
    pub expires_at: Option<u64>,
    /// Time of the last change, in seconds since 1970.
    pub last_active_at: u64,
    /// Pairs that the client gave.
    pub metadata: BTreeMap<String, String>,
}

/// Numbers of files of a vector store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct FileCounts {
    /// Files that are being indexed.
    pub in_progress: u64,
    /// Files that searches find.
    pub completed: u64,
    /// Files that cannot be indexed.
    pub failed: u64,
    /// Files of batches that were canceled before their turn.
    pub cancelled: u64,
    /// All files.
    pub total: u64,
}

/// File of a vector store.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VectorStoreFile)]
pub struct VectorStoreFileObject {
    /// ID of the file.
    pub id: String,
    /// Always `vector_store.file`.
    pub object: &'static str,
    /// Time at which the file was added, in seconds since 1970.
    pub created_at: u64,
    /// ID of the vector store.
    pub vector_store_id: String,
    /// Progress of the file.
    pub status: IndexingStatus,
    /// Reason why the file could not be indexed. Null unless it failed.
    #[schema(required)]
    pub last_error: Option<IndexingFault>,
    /// Size of its texts in the index with their metadata, in bytes.
    pub usage_bytes: u64,
    /// Attributes, which become metadata of its chunks.
    #[schema(value_type = Object)]
    pub attributes: Map<String, Value>,
    /// Splitting into chunks.
    pub chunking_strategy: UsedChunking,
}

impl VectorStoreObject {
    /// Describes a store that a client created. May read its index.
    pub(super) fn new(store: &VectorStore) -> VectorStoreObject {
        let StoreRecord { created_at, name, description, metadata, .. } = store.record();
        let mut counts = FileCounts::default();
        let mut last_active_at = created_at;
        for (_, file) in store.files() {
            counts.add(file.status);
            last_active_at = last_active_at.max(file.created_at);
        }
        VectorStoreObject {
            id: store.id.clone(),
            object: "vector_store",
            created_at,
            name,
            description,
            usage_bytes: store.text_bytes(),
            file_counts: counts,
            status: if counts.in_progress > 0 { IndexingStatus::InProgress } else { IndexingStatus::Completed },
            expires_after: None,
            expires_at: None,
            last_active_at,
            metadata,
        }
    }

    /// Describes an index that the server was started with.
    pub(super) fn fixed(id: String, created_at: u64, usage_bytes: u64) -> VectorStoreObject {
        VectorStoreObject {
            name: Some(id.clone()),
            id,
            object: "vector_store",
            created_at,
            description: None,
            usage_bytes,
            file_counts: FileCounts::default(),
            status: IndexingStatus::Completed,
            expires_after: None,
            expires_at: None,
            last_active_at: created_at,
            metadata: BTreeMap::new(),
        }
    }
}

impl FileCounts {
    pub(super) fn add(&mut self, status: IndexingStatus) {
        self.total += 1;
        match status {
            IndexingStatus::InProgress => self.in_progress += 1,
            IndexingStatus::Completed => self.completed += 1,
            IndexingStatus::Failed => self.failed += 1,
            IndexingStatus::Cancelled => self.cancelled += 1,
        }
    }
}

impl VectorStoreFileObject {
    /// Describes a file of `store`, whose embedder reads `most` tokens.
    pub(super) fn new(store: &VectorStore, id: String, file: AttachedFile, most: usize) -> VectorStoreFileObject {
        VectorStoreFileObject {
            id,
            object: "vector_store.file",
            created_at: file.created_at,
            vector_store_id: store.id.clone(),
            status: file.status,
            last_error: file.error,
            usage_bytes: file.bytes,
            attributes: file.attributes,
            chunking_strategy: chunking::used(file.sizes, most),
        }
    }
}
