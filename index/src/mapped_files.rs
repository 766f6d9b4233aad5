//! Identities of the files that a snapshot has mapped. A repair renames new files over damaged ones, and a snapshot
//! keeps the old ones until it is opened again.

use std::path::Path;
use std::sync::Arc;

use crate::manifest::Manifest;

/// Identities of the files of a base snapshot, in the order of its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MappedFiles(Arc<[Option<u64>]>);

impl MappedFiles {
    /// Identifies the files of the base snapshot of `manifest`, which are in the folder `files`. Call it before mapping
    /// them: a file that is replaced in between then counts as another one.
    pub(crate) fn of(files: &Path, manifest: &Manifest) -> MappedFiles {
        let within = manifest.files.keys().filter_map(|name| name.split_once('/'));
        MappedFiles(within.map(|(_, name)| identity(&files.join(name))).collect())
    }
}

/// Returns the number of a file, which no other file has while this one is mapped. `None` if the file is missing.
#[cfg(unix)]
fn identity(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|about| std::os::unix::fs::MetadataExt::ino(&about))
}

/// Other systems refuse to replace a file that is mapped, so no identity is needed.
#[cfg(not(unix))]
fn identity(_: &Path) -> Option<u64> {
    None
}
