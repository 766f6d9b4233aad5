//! Record of the publication that a directory holds.
//!
//! A record counts only while the index still has the manifest that the publication names: a commit in the directory,
//! or a process that was killed before it wrote the record, leaves another manifest.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use waymark_index::layout::{DELTA, HISTORY, LOCK, SNAPSHOT};
use waymark_index::{IndexError, MANIFEST};
use waymark_models::{durable_file, file_lock};

use super::SnapshotError;
use super::published::{Part, PublishedFile, PublishedIndex};

/// Name of the manifest of the publication that a directory holds.
pub(super) const HELD: &str = ".waymark.replica.json";
/// Name of the manifest of the publication that is about to be held: its files are all there.
pub(super) const NEXT: &str = ".waymark.replica.next.json";

/// Returns the publication that the directory holds. `None` if it has no index, or another one.
pub(super) fn read(dir: &Path) -> Result<Option<PublishedIndex>, SnapshotError> {
    let Some(manifest) = local_manifest(dir)? else { return Ok(None) };
    let is_here = |recorded: &PublishedIndex| recorded.files.get(MANIFEST) == Some(&manifest);
    if let Some(held) = recorded(dir, HELD)?.filter(is_here) {
        return Ok(Some(held));
    }
    let next = recorded(dir, NEXT)?.filter(is_here);
    if let Some(next) = &next {
        record(dir, next)?;
    }
    Ok(next)
}

/// Records that all files of `next` are there, before its manifest makes it visible.
pub(super) fn announce(dir: &Path, next: &PublishedIndex) -> Result<(), SnapshotError> {
    let path = dir.join(NEXT);
    durable_file::replace(&path, &next.to_json()?).map_err(SnapshotError::file("write", &path))
}

/// Records that the directory holds `held`.
pub(super) fn record(dir: &Path, held: &PublishedIndex) -> Result<(), SnapshotError> {
    let path = dir.join(HELD);
    durable_file::replace(&path, &held.to_json()?).map_err(SnapshotError::file("write", &path))
}

fn recorded(dir: &Path, name: &str) -> Result<Option<PublishedIndex>, SnapshotError> {
    match fs::read(dir.join(name)) {
        // A record that cannot be parsed is no error: all local files are then read again.
        Ok(json) => Ok(PublishedIndex::parse(name, &json).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SnapshotError::file("read", &dir.join(name))(error)),
    }
}

/// Describes the manifest of the index in `dir`. `None` if there is no index.
pub(super) fn local_manifest(dir: &Path) -> Result<Option<PublishedFile>, SnapshotError> {
    let path = dir.join(MANIFEST);
    match fs::read(&path) {
        Ok(json) => Ok(Some(PublishedFile { parts: vec![Part::of(&json)] })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SnapshotError::file("read", &path)(error)),
    }
}

/// Locks the file `path`, creating it if it is missing. `None` if another process has locked it.
pub(super) fn lock(path: &Path) -> Result<Option<File>, SnapshotError> {
    file_lock::try_take(path).map_err(SnapshotError::file("write", path))
}

/// Locks the index in `dir` for writing, as a commit does.
pub(super) fn lock_index(dir: &Path) -> Result<File, SnapshotError> {
    let locked = || IndexError::Locked { dir: dir.to_owned() };
    lock(&dir.join(LOCK))?.ok_or_else(|| locked().into())
}

/// Removes snapshots and logs that are not among the files `needed`, and the remains of fetches of them. The index must
/// be locked.
pub(super) fn remove_unneeded(dir: &Path, needed: &HashSet<String>) -> io::Result<()> {
    // A directory with a history belongs to a writer, which removes its snapshots itself.
    if dir.join(HISTORY).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if needed.iter().any(|file| file.split('/').next() == Some(name.as_str())) {
            continue;
        }
        if name.starts_with(SNAPSHOT) {
            fs::remove_dir_all(entry.path())?;
        } else if name.starts_with(DELTA) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
