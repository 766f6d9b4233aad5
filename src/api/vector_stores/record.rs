//! Vector stores and their files as they are stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chunking::ChunkSizes;

/// Vector store, without its files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoreRecord {
    /// Identity of the key that owns the store. `None` without keys.
    pub(crate) owner: Option<String>,
    /// Creation time, in seconds since 1970.
    pub(crate) created_at: u64,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// File of a vector store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AttachedFile {
    /// Time at which the file was added, in seconds since 1970.
    pub(crate) created_at: u64,
    pub(crate) status: IndexingStatus,
    /// Reason why the file could not be indexed. `None` unless it failed.
    pub(crate) error: Option<IndexingFault>,
    /// Attributes, which become metadata of every chunk.
    pub(crate) attributes: Map<String, Value>,
    /// Sizes of chunks. `None` leaves them to the index.
    pub(crate) sizes: Option<ChunkSizes>,
    /// Number of chunks in the index, whose IDs are those of [`chunk_id`].
    pub(crate) chunks: u64,
    /// Size of the chunks with their metadata, in bytes. While a long file is being indexed, that of all its chunks.
    pub(crate) bytes: u64,
    /// Number of chunks of a long file that are in the index as they are to be. Those behind them are still to be
    /// indexed. 0 once the file is indexed.
    #[serde(default)]
    pub(crate) indexed: u64,
    /// ID of the batch with which the file was added. `None` for a file that was added alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<String>,
    /// Number of attempts to index the file that are not over. Attempts that ended with their process stay counted.
    #[serde(default)]
    pub(crate) attempts: u32,
    /// If `true`, the file is being removed from the store. The next start finishes a removal that was interrupted.
    #[serde(default)]
    pub(crate) removing: bool,
}

/// Batch of files, without its files, whose records name it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    /// Creation time, in seconds since 1970.
    pub(crate) created_at: u64,
    /// If `true`, the files that waited then are not indexed.
    pub(crate) cancelled: bool,
}

/// Progress of a file of a vector store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IndexingStatus {
    /// The file waits to be indexed, or is being indexed.
    InProgress,
    /// Searches find the file.
    Completed,
    /// The file cannot be indexed.
    Failed,
    /// The file is not indexed, because its batch was canceled. Searches find what was indexed of it before.
    Cancelled,
}

/// Reason why a file could not be indexed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IndexingFault {
    /// `unsupported_file`, `invalid_file` or `server_error`.
    pub code: String,
    /// Message for people.
    pub message: String,
}

impl AttachedFile {
    /// Returns the IDs of the chunks in the index.
    pub(crate) fn chunk_ids(&self, file: &str) -> impl Iterator<Item = String> + use<> {
        let file = file.to_owned();
        (1..=self.chunks).map(move |number| chunk_id(&file, number))
    }
}

/// Returns the ID of the document that holds chunk `number` of a file, from 1.
pub(super) fn chunk_id(file: &str, number: u64) -> String {
    format!("{file}#{number}")
}
