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
    /// Status before the file was to be indexed again for new attributes. `None` unless that is the reason for which it
    /// is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) earlier_status: Option<IndexingStatus>,
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
    /// Replaces the attributes. A file with chunks in the index is to be indexed again, because chunks hold the
    /// attributes of their file.
    pub(super) fn with_attributes(self, attributes: Map<String, Value>) -> AttachedFile {
        if self.attributes == attributes {
            return self;
        }
        let in_progress = IndexingStatus::InProgress;
        let (status, earlier_status, error) = match self.status {
            IndexingStatus::InProgress => (in_progress, self.earlier_status, None),
            status if self.chunks > 0 => (in_progress, Some(status), None),
            status => (status, None, self.error),
        };
        AttachedFile { attributes, status, earlier_status, error, indexed: 0, attempts: 0, ..self }
    }

    /// Returns the status that counts in the batch of the file, which new attributes do not change.
    pub(super) fn status_in_batch(&self) -> IndexingStatus {
        self.earlier_status.unwrap_or(self.status)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_attributes_change_nothing_else_of_a_file() {
        let file = |status, chunks| AttachedFile {
            created_at: 1,
            status,
            error: None,
            attributes: Map::new(),
            sizes: None,
            chunks,
            bytes: 7,
            indexed: 0,
            batch: Some("vsfb_1".to_owned()),
            attempts: 0,
            removing: false,
            earlier_status: None,
        };
        let changed = |file: &AttachedFile, value: u32| {
            file.clone().with_attributes(Map::from_iter([("year".to_owned(), Value::from(value))]))
        };
        let completed = file(IndexingStatus::Completed, 2);
        let once = changed(&completed, 1);
        assert_eq!((once.status, once.status_in_batch()), (IndexingStatus::InProgress, IndexingStatus::Completed));
        let twice = changed(&once, 2);
        assert_eq!(AttachedFile { attributes: once.attributes.clone(), ..twice }, once);
        let earlier_status = None;
        let back = AttachedFile { status: completed.status, attributes: Map::new(), earlier_status, ..once.clone() };
        assert_eq!(back, completed);
        let indexed = AttachedFile { status: completed.status, earlier_status: None, ..once };
        assert_eq!(changed(&indexed, 1), indexed, "the same attributes");
        let failed = changed(&file(IndexingStatus::Failed, 0), 1);
        assert_eq!((failed.status, failed.earlier_status), (IndexingStatus::Failed, None), "there are no chunks");
        let waiting = changed(&file(IndexingStatus::InProgress, 0), 1);
        assert_eq!(
            (waiting.status, waiting.status_in_batch()),
            (IndexingStatus::InProgress, IndexingStatus::InProgress)
        );
    }
}
