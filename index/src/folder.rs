//! The folder of an index on disk: lock, publishing, and removal of old snapshots.
//!
//! ```text
//! <index>/manifest.json        names the snapshot and its files; replaced by rename, which publishes
//! <index>/snapshot-<n>/        the files of snapshot n, never written again
//! <index>/snapshot-<n>.part/   a snapshot under construction, or the remains of a killed build
//! <index>/delta-<n>.log         changes since a base snapshot, the first of them in snapshot n; only appended to
//! <index>/pending/             accepted changes that are not committed yet
//! <index>/pending/finished.json  IDs of those that are committed although their files are still there
//! <index>/history/             manifests of earlier snapshots that are kept
//! <index>/merge-<n>.part/      a base snapshot being written by a merge, or the remains of a killed one
//! <index>/.waymark.lock        locked by the only writer
//! <index>/.waymark.merge.lock  locked by the only merge
//! <index>/.embeddings          journal of vectors embedded for the next snapshot; removed once published
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::IndexError;
use crate::finished_changes;
use crate::history;
use crate::layout::{
    JOURNAL, LOCK, MANIFEST, MANIFEST_PART, MERGE, MERGE_LOCK, PARTIAL, SNAPSHOT, delta_number, snapshot_name,
    snapshot_number,
};
use crate::manifest::Manifest;
use crate::pending::PendingFile;

/// Folder of an index, locked for writing by this process until dropped.
#[derive(Debug)]
pub(crate) struct LockedFolder {
    dir: PathBuf,
    /// Accepted changes that the snapshot to be published contains.
    pub(crate) accepted: Vec<PendingFile>,
    /// The operating system releases the lock when this file is closed, which happens even if the process is killed.
    _lock: File,
}

impl LockedFolder {
    /// Locks the folder, creating it if needed. Refuses a folder with files that belong to no index.
    pub(crate) fn lock(dir: &Path) -> Result<LockedFolder, IndexError> {
        create(dir)?;
        let names = names(dir)?;
        let has = |name: &str| names.iter().any(|other| other == name);
        let ours = has(LOCK) || (has(MANIFEST) && names.iter().any(|name| snapshot_number(name).is_some()));
        if !names.is_empty() && !ours {
            return Err(IndexError::Foreign { dir: dir.to_owned() });
        }
        let dir = dir.to_owned();
        match try_lock(&dir.join(LOCK))? {
            Some(lock) => Ok(LockedFolder { dir, accepted: Vec::new(), _lock: lock }),
            None => Err(IndexError::Locked { dir }),
        }
    }

    pub(crate) fn holds_index(&self) -> bool {
        self.dir.join(MANIFEST).exists()
    }

    /// Returns an unused snapshot number, larger than any present one and than those of kept snapshots. Fails once
    /// numbers are exhausted.
    pub(crate) fn next_snapshot(&self, published: Option<u64>) -> Result<u64, IndexError> {
        let seen = names(&self.dir)?.iter().filter_map(|name| snapshot_number(name)).max();
        // Those of an index that a pull has replaced may be larger than the present ones.
        let kept = history::numbers(&self.dir)?.into_iter().max();
        let largest = seen.max(kept).max(published).unwrap_or(0);
        largest.checked_add(1).ok_or_else(|| IndexError::Numbers { dir: self.dir.clone() })
    }

    /// Creates the folder of a snapshot under construction.
    pub(crate) fn create_part(&self, number: u64) -> Result<PartialSnapshot, IndexError> {
        let path = self.dir.join(format!("{SNAPSHOT}{number}{PARTIAL}"));
        fs::create_dir(&path).map_err(IndexError::io("create", &path))?;
        Ok(PartialSnapshot { path })
    }

    /// Renames a synced snapshot to its final name. It is not part of the index before [`LockedFolder::publish`].
    pub(crate) fn rename_snapshot(&self, part: PartialSnapshot, number: u64) -> Result<(), IndexError> {
        let target = self.dir.join(snapshot_name(number));
        fs::rename(&part.path, &target).map_err(IndexError::io("rename", &part.path))?;
        // The folder has its final name now; dropping `part` would try to remove the old one.
        std::mem::forget(part);
        sync_folder(&self.dir)
    }

    /// Replaces the manifest, which makes the new snapshot visible to readers. After an error it is not visible. The
    /// last `keep` earlier manifests are kept with everything they name.
    pub(crate) fn publish(&self, manifest: &Manifest, keep: usize) -> Result<(), IndexError> {
        let part = self.dir.join(MANIFEST_PART);
        let target = self.dir.join(MANIFEST);
        let replaced = if keep > 0 { history::keep(&self.dir)? } else { None };
        finished_changes::announce(&self.dir, manifest, &self.accepted)?;
        replace_file(&part, &target, &manifest.to_json())?;
        // The snapshot is published from here on, even if the sync fails; only a machine crash could undo it.
        if let Err(error) = sync_folder(&self.dir) {
            tracing::warn!(%error, "published the new snapshot, but could not sync the folder: a machine crash may undo it");
        }
        if let Err(error) = history::prune(&self.dir, keep, replaced) {
            tracing::warn!(%error, "cannot remove the manifests of earlier snapshots yet");
        }
        Ok(())
    }

    /// Removes the journal of embeddings. The published snapshot contains what it needs from the journal; entries that
    /// a killed build of another corpus left are lost and embedded again.
    pub(crate) fn remove_journal(&self) -> Result<(), IndexError> {
        let path = self.dir.join(JOURNAL);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(IndexError::io("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Removes the snapshots and logs that neither `current` nor a kept manifest names, and the remains of killed
    /// builds. While a kept manifest cannot be read, snapshots and logs stay, since it may name any of them. Readers
    /// keep their open snapshots: the system frees the files when the last reader closes them. Files that cannot be
    /// removed yet, as on a network file system, are logged and left to the next writer; their snapshot numbers are not
    /// reused.
    pub(crate) fn sweep(&self, current: Option<&Manifest>) -> Result<(), IndexError> {
        let kept = history::manifests(&self.dir)?;
        let named: Vec<&Manifest> = current.into_iter().chain(&kept.readable).collect();
        let needs_snapshot = |number| kept.incomplete || named.iter().any(|manifest| manifest.base() == number);
        let names_log =
            |manifest: &Manifest, name: &str| manifest.delta.as_ref().is_some_and(|delta| delta.log == name);
        let needs_log = |name: &str| kept.incomplete || named.iter().any(|manifest| names_log(manifest, name));
        for name in names(&self.dir)? {
            let path = self.dir.join(&name);
            let removed = match snapshot_number(&name) {
                Some(number) if needs_snapshot(number) && !name.ends_with(PARTIAL) => continue,
                Some(_) => fs::remove_dir_all(&path),
                None if name == MANIFEST_PART => fs::remove_file(&path),
                None if delta_number(&name).is_some() && !needs_log(&name) => fs::remove_file(&path),
                None => continue,
            };
            if let Err(error) = removed {
                tracing::warn!(path = %path.display(), %error, "cannot remove files of an earlier snapshot yet");
            }
        }
        Ok(())
    }
}

/// Permission to merge the log of an index, held until dropped.
#[derive(Debug)]
pub(crate) struct MergeLock {
    dir: PathBuf,
    _lock: File,
}

impl MergeLock {
    /// Takes the permission. `None` if another merge is running, in this process or another.
    pub(crate) fn take(dir: &Path) -> Result<Option<MergeLock>, IndexError> {
        let lock = try_lock(&dir.join(MERGE_LOCK))?;
        Ok(lock.map(|lock| MergeLock { dir: dir.to_owned(), _lock: lock }))
    }

    /// Creates the folder of the merged snapshot, after removing those of killed merges.
    pub(crate) fn create_part(&self, number: u64) -> Result<PartialSnapshot, IndexError> {
        for name in names(&self.dir)?.iter().filter(|name| name.starts_with(MERGE) && name.ends_with(PARTIAL)) {
            let path = self.dir.join(name);
            fs::remove_dir_all(&path).map_err(IndexError::io("remove", &path))?;
        }
        let path = self.dir.join(format!("{MERGE}{number}{PARTIAL}"));
        fs::create_dir(&path).map_err(IndexError::io("create", &path))?;
        Ok(PartialSnapshot { path })
    }
}

/// Snapshot under construction. Dropping it removes its folder.
#[derive(Debug)]
pub(crate) struct PartialSnapshot {
    path: PathBuf,
}

impl PartialSnapshot {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PartialSnapshot {
    fn drop(&mut self) {
        // The next build sweeps what cannot be removed now.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Locks the file at `path`, creating it if it is missing. `None` if it is locked already.
fn try_lock(path: &Path) -> Result<Option<File>, IndexError> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(IndexError::io("create", path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(IndexError::io("lock", path)(error)),
    }
}

#[cfg(test)]
thread_local! {
    /// Files and folders that this thread has made durable.
    pub(crate) static SYNCED: std::cell::RefCell<Vec<PathBuf>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Makes a file durable.
pub(crate) fn sync_file(path: &Path) -> Result<(), IndexError> {
    #[cfg(test)]
    SYNCED.with_borrow_mut(|synced| synced.push(path.to_owned()));
    File::open(path).and_then(|file| file.sync_all()).map_err(IndexError::io("sync", path))
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), IndexError> {
    // A folder is synced through a file handle on it.
    sync_file(path)
}

/// Replaces the file at `path` by renaming the file `part`, which is written and synced first. Removes `part` after an
/// error. The caller syncs the folder.
pub(crate) fn replace_file(part: &Path, path: &Path, bytes: &[u8]) -> Result<(), IndexError> {
    let write = |mut file: File| file.write_all(bytes).and_then(|()| file.sync_all());
    let written = File::create(part).and_then(write).map_err(IndexError::io("write", part));
    let replaced = written.and_then(|()| fs::rename(part, path).map_err(IndexError::io("replace", path)));
    replaced.inspect_err(|_| {
        let _ = fs::remove_file(part);
    })
}

/// Creates a folder and its missing parents, and makes their names durable. If the folder already exists, its parent
/// need not be readable.
pub(crate) fn create(dir: &Path) -> Result<(), IndexError> {
    let new = dir.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).count();
    fs::create_dir_all(dir).map_err(IndexError::io("create", dir))?;
    if new == 0 {
        return Ok(());
    }
    let whole = dir.canonicalize().map_err(IndexError::io("open", dir))?;
    whole.ancestors().skip(1).take(new).try_for_each(sync_folder)
}

pub(crate) fn names(dir: &Path) -> Result<Vec<String>, IndexError> {
    let names = |entries: fs::ReadDir| {
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<io::Result<Vec<_>>>()
    };
    fs::read_dir(dir).and_then(names).map_err(IndexError::io("read", dir))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_of_snapshots_end_in_an_error() {
        let temp = tempfile::tempdir().unwrap();
        // Two new folders, one inside the other.
        let dir = temp.path().join("new/index");
        let writing = LockedFolder::lock(&dir).unwrap();
        assert_eq!(writing.next_snapshot(None).unwrap(), 1);
        assert_eq!(writing.next_snapshot(Some(u64::MAX - 1)).unwrap(), u64::MAX);
        assert!(matches!(writing.next_snapshot(Some(u64::MAX)), Err(IndexError::Numbers { .. })));
        fs::create_dir(dir.join(snapshot_name(u64::MAX))).unwrap();
        let error = writing.next_snapshot(None).unwrap_err().to_string();
        assert!(error.contains("new/index") && error.contains("another folder"), "{error}");
    }

    #[test]
    fn a_file_is_replaced_and_no_part_of_it_stays() {
        let temp = tempfile::tempdir().unwrap();
        let part = temp.path().join("file.part");
        let file = temp.path().join("file");
        for text in ["first, and long", "second"] {
            replace_file(&part, &file, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        let folder = temp.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let error = replace_file(&part, &folder, b"third").unwrap_err().to_string();
        assert!(error.contains("cannot replace") && error.contains("folder"), "{error}");
        assert!(!part.exists());
    }
}
