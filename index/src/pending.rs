//! Changes that were accepted but are not committed yet, kept on disk so that they survive the end of the process.
//!
//! Each change is a file in the folder `pending` of the index, named by its place in the order of acceptance. The file
//! is written aside, synced and linked to its name, which several processes may do at the same time. It is removed once
//! the change is committed or has failed. A change that was committed just before the process ended may still be there;
//! the record of [`finished_changes`](crate::finished_changes) names it, so that it is not made again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Mutex;
use std::sync::PoisonError;

use serde::{Deserialize, Serialize};

use crate::commit::Changes;
use crate::error::IndexError;
use crate::folder;
use crate::layout::PENDING;

/// Extension of a file being written.
const PART: &str = ".part";

/// Accepted change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingChange {
    /// ID that the client was given.
    pub id: String,
    /// Identity of the key that sent the change. `None` without keys.
    pub owner: Option<String>,
    /// Requested changes.
    pub changes: Changes,
}

/// Folder of the accepted changes of one index.
#[derive(Debug)]
pub struct PendingChanges {
    dir: PathBuf,
    /// Smallest number of the next file. The lock is held while a file is named, so that the order is that of
    /// acceptance.
    next: Mutex<u64>,
}

/// File of one accepted change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingFile {
    path: PathBuf,
    /// ID of the change.
    id: String,
}

impl PendingFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Name in the folder of accepted changes.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// ID of the change.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns `true` if the file is certainly not there.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.path.try_exists(), Ok(false))
    }
}

impl PendingChanges {
    /// Opens the folder of the index in `dir`, and returns what an earlier process left in it, in order. Changes that
    /// are committed already may be among them; [`LiveIndex::commit_accepted`](crate::LiveIndex::commit_accepted) skips
    /// them. Files that cannot be read are logged and left alone.
    ///
    /// # Errors
    /// If the folder exists but cannot be read.
    pub fn open(dir: &Path) -> Result<(PendingChanges, Vec<(PendingFile, PendingChange)>), IndexError> {
        let dir = dir.join(PENDING);
        let mut names = if dir.exists() { folder::names(&dir)? } else { Vec::new() };
        names.sort_unstable();
        let mut left = Vec::new();
        let mut next = 0;
        for name in names {
            let path = dir.join(&name);
            let Some(number) = number(&name) else {
                // Its change was never acknowledged.
                if name.ends_with(PART) {
                    let _ = fs::remove_file(&path);
                }
                continue;
            };
            next = next.max(number + 1);
            match fs::read(&path).map_err(|error| error.to_string()).and_then(|json| parse(&json)) {
                Ok(change) => left.push((PendingFile { path, id: change.id.clone() }, change)),
                Err(error) => {
                    tracing::error!(path = %path.display(), error, "cannot read an accepted change: it is not committed");
                }
            }
        }
        Ok((PendingChanges { dir, next: Mutex::new(next) }, left))
    }

    /// Writes a change and makes it durable.
    ///
    /// # Errors
    /// If the disk fails. The change must then not be acknowledged.
    pub fn add(&self, change: &PendingChange) -> Result<PendingFile, IndexError> {
        let json =
            serde_json::to_vec(change).map_err(|error| IndexError::io("write", &self.dir)(io::Error::other(error)))?;
        loop {
            let number = self.take_number()?;
            let path = self.dir.join(format!("{number:020}.json"));
            let part = self.dir.join(format!("{number:020}.{}{PART}", process::id()));
            if place(&json, &part, &path)? {
                folder::sync_folder(&self.dir)?;
                return Ok(PendingFile { path, id: change.id.clone() });
            }
        }
    }

    /// Takes the number after those of all changes in the folder, which is created if needed.
    fn take_number(&self) -> Result<u64, IndexError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        folder::create(&self.dir)?;
        // Another process may have accepted changes meanwhile.
        let names = folder::names(&self.dir)?;
        let last = names.iter().filter_map(|name| number(name)).max();
        let number = last.map_or(*next, |last| (*next).max(last + 1));
        *next = number + 1;
        Ok(number)
    }

    /// Removes a change that is committed or has failed. A file that cannot be removed is logged. The next process does
    /// not make the change again, unless it was refused.
    pub fn remove(&self, file: &PendingFile) {
        if let Err(error) = fs::remove_file(&file.path) {
            tracing::warn!(path = %file.path.display(), %error, "cannot remove a finished change");
        }
    }
}

/// Writes `json` to the new file `part`, makes it durable, and gives it the name `path`. Returns `false` if either name
/// is taken, which happens when another process accepts a change at the same time, or if `part` is gone, which happens
/// when another process opens the folder.
fn place(json: &[u8], part: &Path, path: &Path) -> Result<bool, IndexError> {
    let mut file = match File::create_new(part) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        other => other.map_err(IndexError::io("create", part))?,
    };
    if let Err(error) = file.write_all(json).and_then(|()| file.sync_all()) {
        let _ = fs::remove_file(part);
        return Err(IndexError::io("write", part)(error));
    }
    // Unlike a rename, a link never replaces a file.
    let linked = fs::hard_link(part, path);
    let is_taken = linked.is_err() && path.exists();
    let named = match linked {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !part.exists() => return Ok(false),
        // On a file system without links, two processes that accept a change in the same moment are not told apart.
        Err(_) if !is_taken => fs::rename(part, path).map_err(IndexError::io("rename", part)),
        _ => Ok(()),
    };
    // After a rename there is nothing to remove.
    let _ = fs::remove_file(part);
    named.map(|()| !is_taken)
}

/// Parses the number of a change from the name of its file.
fn number(name: &str) -> Option<u64> {
    // The largest number has no successor.
    name.strip_suffix(".json")?.parse::<u64>().ok().filter(|number| *number < u64::MAX)
}

fn parse(json: &[u8]) -> Result<PendingChange, String> {
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn change(i: usize) -> PendingChange {
        PendingChange {
            id: format!("commit-{i}"),
            owner: i.is_multiple_of(2).then(|| "key".to_owned()),
            changes: Changes { mirror: i == 3, ..Changes::delete([format!("d{i}")]) },
        }
    }

    fn left(dir: &Path) -> Vec<PendingChange> {
        PendingChanges::open(dir).unwrap().1.into_iter().map(|(_, change)| change).collect()
    }

    #[test]
    fn changes_are_found_again_in_order_until_they_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let (pending, left) = PendingChanges::open(temp.path()).unwrap();
        assert!(left.is_empty());
        let files: Vec<_> = (0..12).map(|i| pending.add(&change(i)).unwrap()).collect();
        pending.remove(&files[4]);
        fs::write(temp.path().join("pending/00000000000000000099.part"), "half").unwrap();
        fs::write(temp.path().join("pending/00000000000000000050.json"), "{").unwrap();
        let (pending, left) = PendingChanges::open(temp.path()).unwrap();
        let expected: Vec<_> = (0..12).filter(|i| *i != 4).map(|i| (files[i].clone(), change(i))).collect();
        assert_eq!(left, expected);
        assert!(!temp.path().join("pending/00000000000000000099.part").exists());
        // Numbers go on behind everything that is there.
        pending.add(&change(20)).unwrap();
        assert_eq!(PendingChanges::open(temp.path()).unwrap().1.last().unwrap().1, change(20));
    }

    #[test]
    fn two_processes_do_not_replace_each_others_changes() {
        let temp = tempfile::tempdir().unwrap();
        let open = || PendingChanges::open(temp.path()).unwrap().0;
        let processes = [open(), open()];
        for i in 0..6 {
            processes[i % 2].add(&change(i)).unwrap();
        }
        assert_eq!(left(temp.path()), (0..6).map(change).collect::<Vec<_>>(), "in the order of acceptance");
        std::thread::scope(|scope| {
            for process in &processes {
                scope.spawn(move || (6..30).for_each(|i| drop(process.add(&change(i)).unwrap())));
            }
        });
        assert_eq!(left(temp.path()).len(), 6 + 2 * 24);
        let names = folder::names(&temp.path().join(PENDING)).unwrap();
        assert!(names.iter().all(|name| name.ends_with(".json")), "{names:?}");
        // Both have looked for the last number, and one of them was faster.
        let dir = temp.path().join(PENDING);
        let taken = dir.join(format!("{:020}.json", 0));
        let before = fs::read(&taken).unwrap();
        assert!(!place(b"{}", &dir.join("other.part"), &taken).unwrap());
        assert_eq!((fs::read(&taken).unwrap(), dir.join("other.part").exists()), (before, false));
    }

    #[test]
    fn the_name_of_a_new_folder_is_durable_before_a_change_is_accepted() {
        let temp = tempfile::tempdir().unwrap();
        let index = temp.path().canonicalize().unwrap();
        let (pending, _) = PendingChanges::open(&index).unwrap();
        folder::SYNCED.take();
        pending.add(&change(0)).unwrap();
        assert_eq!(folder::SYNCED.take(), [index.clone(), index.join(PENDING)]);
        pending.add(&change(1)).unwrap();
        assert_eq!(folder::SYNCED.take(), [index.join(PENDING)]);
    }
}
