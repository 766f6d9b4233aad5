//! The folder of an index on disk: names, lock, publishing, sweeping.
//!
//! ```text
//! <index>/manifest.json        names the snapshot and its files; replaced by rename, which publishes
//! <index>/snapshot-<n>/        the files of snapshot n, never written again
//! <index>/snapshot-<n>.part/   a snapshot in the making, or what a killed build left
//! <index>/.waymark.lock        held by the one writer
//! <index>/.embeddings          what the one writer, or a killed one before it, has embedded; gone once published
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::IndexError;
use crate::layout::{JOURNAL, LOCK, MANIFEST, MANIFEST_PART, PARTIAL, SNAPSHOT, snapshot_name, snapshot_number};

/// The folder of an index, held for writing by this process alone until dropped.
#[derive(Debug)]
pub(crate) struct LockedFolder {
    dir: PathBuf,
    /// Closing it gives the lock back, and so does the end of the process, whatever ends it.
    _lock: File,
}

impl LockedFolder {
    /// Takes the folder, which is created if it is missing. A folder that holds anything that is not of an index is
    /// left alone.
    pub(crate) fn begin(dir: &Path) -> Result<LockedFolder, IndexError> {
        create(dir)?;
        let names = names(dir)?;
        let has = |name: &str| names.iter().any(|other| other == name);
        let ours = has(LOCK) || (has(MANIFEST) && names.iter().any(|name| snapshot_number(name).is_some()));
        if !names.is_empty() && !ours {
            return Err(IndexError::Foreign { dir: dir.to_owned() });
        }
        let path = dir.join(LOCK);
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(IndexError::io("create", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(LockedFolder { dir: dir.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(IndexError::Locked { dir: dir.to_owned() }),
            Err(TryLockError::Error(error)) => Err(IndexError::io("lock", &path)(error)),
        }
    }

    pub(crate) fn holds_index(&self) -> bool {
        self.dir.join(MANIFEST).exists()
    }

    /// A number that no snapshot here has, nor had if any is left. Fails after the largest there is.
    pub(crate) fn next_snapshot(&self, published: Option<u64>) -> Result<u64, IndexError> {
        let seen = names(&self.dir)?.iter().filter_map(|name| snapshot_number(name)).max();
        seen.max(published).unwrap_or(0).checked_add(1).ok_or_else(|| IndexError::Numbers { dir: self.dir.clone() })
    }

    /// Creates the folder in which a snapshot is made.
    pub(crate) fn create_part(&self, number: u64) -> Result<PartialSnapshot, IndexError> {
        let path = self.dir.join(format!("{SNAPSHOT}{number}{PARTIAL}"));
        fs::create_dir(&path).map_err(IndexError::io("create", &path))?;
        Ok(PartialSnapshot { path })
    }

    /// Gives a synced snapshot its name. It is not part of the index before [`LockedFolder::publish`].
    pub(crate) fn settle(&self, part: PartialSnapshot, number: u64) -> Result<(), IndexError> {
        let target = self.dir.join(snapshot_name(number));
        fs::rename(&part.path, &target).map_err(IndexError::io("rename", &part.path))?;
        std::mem::forget(part);
        sync_folder(&self.dir)
    }

    /// Puts a new manifest in the place of the old one: the moment at which readers see the new snapshot. An error means
    /// that they do not.
    pub(crate) fn publish(&self, manifest: &[u8]) -> Result<(), IndexError> {
        let (part, target) = (self.dir.join(MANIFEST_PART), self.dir.join(MANIFEST));
        let write = |file: &mut File| file.write_all(manifest).and_then(|()| file.sync_all());
        File::create(&part).and_then(|mut file| write(&mut file)).map_err(IndexError::io("write", &part))?;
        fs::rename(&part, &target).map_err(IndexError::io("replace", &target))?;
        // The snapshot is published by now, whatever is said about it; only a crash of the machine could undo that.
        if let Err(error) = sync_folder(&self.dir) {
            tracing::warn!(%error, "the new snapshot is published, but may not outlast a crash of the machine");
        }
        Ok(())
    }

    /// Removes the journal of embeddings: what the published snapshot wants of it stands there now. What a killed build of
    /// another corpus left in it goes as well, and is embedded again.
    pub(crate) fn forget(&self) -> Result<(), IndexError> {
        let path = self.dir.join(JOURNAL);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(IndexError::io("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Removes every snapshot but `keep`, and whatever killed builds left. Readers that have a removed snapshot open
    /// keep it: the system frees the files when the last one is done. What will not go, as on a network file system
    /// while somebody reads it, is told to the log and left to the next writer: its number is not used again.
    pub(crate) fn sweep(&self, keep: Option<u64>) -> Result<(), IndexError> {
        for name in names(&self.dir)? {
            let path = self.dir.join(&name);
            let removed = match snapshot_number(&name) {
                Some(number) if keep == Some(number) && !name.ends_with(PARTIAL) => continue,
                Some(_) => fs::remove_dir_all(&path),
                None if name == MANIFEST_PART => fs::remove_file(&path),
                None => continue,
            };
            if let Err(error) = removed {
                tracing::warn!(path = %path.display(), %error, "what an earlier snapshot left cannot be removed yet");
            }
        }
        Ok(())
    }
}

/// A snapshot in the making. Dropping it removes it.
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
        // What cannot be removed now is swept by the next build.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Makes a file durable.
pub(crate) fn sync_file(path: &Path) -> Result<(), IndexError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(IndexError::io("sync", path))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), IndexError> {
    // A folder is synced through a handle on it, as a file is.
    sync_file(path)
}

/// Creates a folder, with those above it, if it is missing. The names of new folders must last as well as what is in
/// them; a folder above that was there already need not even be readable.
fn create(dir: &Path) -> Result<(), IndexError> {
    let new = dir.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).count();
    fs::create_dir_all(dir).map_err(IndexError::io("create", dir))?;
    if new == 0 {
        return Ok(());
    }
    let whole = dir.canonicalize().map_err(IndexError::io("open", dir))?;
    whole.ancestors().skip(1).take(new).try_for_each(sync_folder)
}

fn names(dir: &Path) -> Result<Vec<String>, IndexError> {
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
        // Two new folders, one in the other.
        let dir = temp.path().join("new/index");
        let writing = LockedFolder::begin(&dir).unwrap();
        assert_eq!(writing.next_snapshot(None).unwrap(), 1);
        assert_eq!(writing.next_snapshot(Some(u64::MAX - 1)).unwrap(), u64::MAX);
        assert!(matches!(writing.next_snapshot(Some(u64::MAX)), Err(IndexError::Numbers { .. })));
        fs::create_dir(dir.join(snapshot_name(u64::MAX))).unwrap();
        let error = writing.next_snapshot(None).unwrap_err().to_string();
        assert!(error.contains("new/index") && error.contains("another folder"), "{error}");
    }
}
