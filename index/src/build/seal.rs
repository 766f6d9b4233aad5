//! Makes the files of a snapshot durable, and publishes it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use walkdir::WalkDir;

use crate::checksum::FileChecksum;
use crate::error::IndexError;
use crate::folder::{LockedFolder, PartialSnapshot, sync_file, sync_folder};
use crate::layout::snapshot_name;
use crate::manifest::Manifest;
use crate::progress::{BuildPhase, BuildProgress};

/// Syncs every file and folder of the snapshot, and computes the checksums of its files.
pub(super) fn seal(
    part: &PartialSnapshot,
    snapshot: u64,
    progress: &dyn BuildProgress,
) -> Result<BTreeMap<String, FileChecksum>, IndexError> {
    let root = part.path();
    let mut files: Vec<PathBuf> = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in WalkDir::new(root).sort_by_file_name() {
        let entry = entry.map_err(|error| IndexError::io("read", root)(error.into()))?;
        if entry.file_type().is_dir() {
            folders.push(entry.into_path());
        } else if entry.file_name().to_string_lossy().ends_with(".lock") {
            // tantivy's lock files, useless in a snapshot that is never written again.
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

/// Renames the sealed snapshot, publishes its manifest, and removes what it replaces.
pub(super) fn publish(
    writing: &LockedFolder,
    part: PartialSnapshot,
    manifest: &Manifest,
    keep: usize,
    progress: &dyn BuildProgress,
) -> Result<(), IndexError> {
    progress.update(BuildPhase::Publishing, 0, Some(3));
    writing.rename_snapshot(part, manifest.snapshot)?;
    progress.update(BuildPhase::Publishing, 1, Some(3));
    writing.publish(manifest, keep)?;
    progress.update(BuildPhase::Publishing, 2, Some(3));
    // The new index is published; an old file that cannot be removed does not fail the build.
    if let Err(error) = writing.sweep(Some(manifest)).and_then(|()| writing.remove_journal()) {
        tracing::warn!(%error, "cannot remove the replaced snapshot");
    }
    progress.update(BuildPhase::Publishing, 3, Some(3));
    Ok(())
}
