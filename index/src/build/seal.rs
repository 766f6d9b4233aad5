//! Making the files of a snapshot durable, and publishing it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use walkdir::WalkDir;

use crate::error::IndexError;
use crate::folder::{LockedFolder, PartialSnapshot, sync_file, sync_folder};
use crate::layout::snapshot_name;
use crate::manifest::{FileChecksum, Manifest};
use crate::progress::{BuildPhase, BuildProgress};

/// Syncs every file and folder of the snapshot and takes the sums of its files.
pub(super) fn seal(
    part: &PartialSnapshot,
    snapshot: u64,
    progress: &dyn BuildProgress,
) -> Result<BTreeMap<String, FileChecksum>, IndexError> {
    let root = part.path();
    let (mut files, mut folders): (Vec<PathBuf>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    for entry in WalkDir::new(root).sort_by_file_name() {
        let entry = entry.map_err(|error| IndexError::io("read", root)(error.into()))?;
        if entry.file_type().is_dir() {
            folders.push(entry.into_path());
        } else if entry.file_name().to_string_lossy().ends_with(".lock") {
            // tantivy's own, of no use in a snapshot that is never written again.
            std::fs::remove_file(entry.path()).map_err(IndexError::io("remove", entry.path()))?;
        } else {
            files.push(entry.into_path());
        }
    }
    let total = Some(files.len() as u64);
    progress.update(BuildPhase::Sealing, 0, total);
    let mut sums = BTreeMap::new();
    for (path, done) in files.iter().zip(1..) {
        sync_file(path)?;
        let within: Vec<_> = path.strip_prefix(root).into_iter().flatten().map(|part| part.to_string_lossy()).collect();
        sums.insert(format!("{}/{}", snapshot_name(snapshot), within.join("/")), FileChecksum::of(path)?);
        progress.update(BuildPhase::Sealing, done, total);
    }
    folders.iter().try_for_each(|folder| sync_folder(folder))?;
    Ok(sums)
}

/// Gives the sealed snapshot its name, then its manifest, and removes what it replaces.
pub(super) fn publish(
    writing: &LockedFolder,
    part: PartialSnapshot,
    manifest: &Manifest,
    json: &[u8],
    progress: &dyn BuildProgress,
) -> Result<(), IndexError> {
    progress.update(BuildPhase::Publishing, 0, Some(3));
    writing.settle(part, manifest.snapshot)?;
    progress.update(BuildPhase::Publishing, 1, Some(3));
    writing.publish(json)?;
    progress.update(BuildPhase::Publishing, 2, Some(3));
    // The new index stands; an old file that will not go is no failure of this build.
    if let Err(error) = writing.sweep(Some(manifest.snapshot)).and_then(|()| writing.forget()) {
        tracing::warn!(%error, "what the new snapshot replaces was left");
    }
    progress.update(BuildPhase::Publishing, 3, Some(3));
    Ok(())
}
