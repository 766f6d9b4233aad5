//! Snapshots of indexes on an object store: one writer publishes them, any number of replicas follow.
//!
//! ```text
//! <prefix>/manifests/<number>.json   files of a published snapshot, in parts; created once, which publishes it
//! <prefix>/parts/<hash>              bytes of a file, under their BLAKE3 hash
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `location` | addresses: `s3://…`, `file://…`, folders |
//! | `connector` | HTTP of the object store, over `ureq` |
//! | `published` | what a manifest holds |
//! | `remote` | reading and writing of manifests and parts |
//! | `push` | the writer |
//! | `lineage` | last publication that the writer knows at its place, so that a second writer is refused |
//! | `sweep` | removal of what no kept manifest names |
//! | `replica` | the reader |
//! | `held` | what the reader's directory holds, and its locks |
//! | `file_fetch` | a file that is being fetched |
//! | `follow` | replicas of a server |

mod connector;
mod file_fetch;
mod follow;
mod held;
mod lineage;
mod location;
mod published;
mod push;
mod remote;
mod replica;
mod sweep;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use waymark_index::IndexError;

pub use follow::local_copy;
pub use location::SnapshotLocation;
pub use push::{PushOptions, PushReport, push};
pub use remote::RemoteIndex;
pub use replica::{PullReport, Replica};

/// Error returned when snapshots are published or fetched.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The address is invalid.
    #[error("invalid place of snapshots {0:?}: expected `s3://BUCKET/PREFIX`, `file:///FOLDER` or a folder")]
    Location(String),
    /// The object store returned an error.
    #[error("the object store failed: {0}{remedy}", remedy = remedy(.0))]
    Store(#[from] object_store::Error),
    /// A local file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The local index cannot be used.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The store holds something that no writer writes.
    #[error("{name} is damaged: {reason}")]
    Damaged {
        /// Name of the object.
        name: String,
        /// Reason.
        reason: String,
    },
    /// The place holds no publication yet.
    #[error("{0} holds no index: publish one with `waymark index push`")]
    Empty(String),
    /// The published snapshot is not the one that this directory published last.
    #[error(
        "another writer has published snapshot {number} at {place}: pull it into a directory of its own, or replace it with \
         `--replace`"
    )]
    OtherWriter {
        /// Number of the published snapshot.
        number: u64,
        /// Place of the snapshots.
        place: String,
    },
    /// The index changed so often that no snapshot of it could be read whole.
    #[error("{} changes faster than it can be read", .0.display())]
    Restless(PathBuf),
    /// The work panicked, or the async runtime is ending.
    #[error("the work ended early: {0}")]
    Interrupted(tokio::task::JoinError),
    /// Another process fetches into this directory.
    #[error("another process fetches snapshots into {}", .0.display())]
    InUse(PathBuf),
    /// The index in the directory was built or changed there.
    #[error(
        "the index in {} was built or changed there since the last pull: pull into another directory, or replace the index \
         with `--replace`",
        .0.display()
    )]
    Changed(PathBuf),
}

impl SnapshotError {
    /// Maps an I/O error of the file `path`.
    fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
        let path = path.to_owned();
        move |source| SnapshotError::File { action, path, source }
    }

    /// Returns `true` if a local file is missing, as it is when a commit has replaced it.
    fn is_missing_file(&self) -> bool {
        let source = match self {
            SnapshotError::File { source, .. } | SnapshotError::Index(IndexError::Io { source, .. }) => source,
            _ => return false,
        };
        source.kind() == io::ErrorKind::NotFound
    }
}

/// Address that a client of S3 asks for credentials if the environment has none.
const INSTANCE_METADATA: &str = "169.254.169.254";

/// Returns the end of the message of an error whose text does not tell its remedy. Empty for other errors.
fn remedy(error: &object_store::Error) -> &'static str {
    if error.to_string().contains(INSTANCE_METADATA) {
        "; there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    } else {
        ""
    }
}

/// Runs blocking work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SnapshotError> + Send + 'static,
) -> Result<T, SnapshotError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(SnapshotError::Interrupted(error)),
    }
}
