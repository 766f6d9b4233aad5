//! Changes that were accepted but are not committed yet, kept on disk so that they survive the end of the process.
//!
//! Each change is a file in the folder `pending` of the index, named by its place in the order of acceptance. The file
//! is written aside, synced and renamed, and removed once the change is committed or has failed. A change that was
//! committed just before the process ended may still be there; applying it again changes nothing.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
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
    /// Number of the next file. The lock is held while a file is named, so that the order is that of acceptance.
    next: Mutex<u64>,
}

/// File of one accepted change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingFile(PathBuf);

impl PendingChanges {
    /// Opens the folder of the index in `dir`, and returns what an earlier process left in it, in order. Files that
    /// cannot be read are logged and left alone.
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
            let Some(number) = name.strip_suffix(".json").and_then(|number| number.parse::<u64>().ok()) else {
                // Its change was never acknowledged.
                if name.ends_with(PART) {
                    let _ = fs::remove_file(&path);
                }
                continue;
            };
            next = next.max(number + 1);
            match fs::read(&path).map_err(|error| error.to_string()).and_then(|json| parse(&json)) {
                Ok(change) => left.push((PendingFile(path), change)),
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
        fs::create_dir_all(&self.dir).map_err(IndexError::io("create", &self.dir))?;
        let json = serde_json::to_vec(change)
            .map_err(|error| IndexError::io("write", &self.dir)(std::io::Error::other(error)))?;
        let number = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next - 1
        };
        let path = self.dir.join(format!("{number:020}.json"));
        let part = self.dir.join(format!("{number:020}{PART}"));
        let write = |file: &mut File| file.write_all(&json).and_then(|()| file.sync_all());
        File::create(&part).and_then(|mut file| write(&mut file)).map_err(IndexError::io("write", &part))?;
        fs::rename(&part, &path).map_err(IndexError::io("rename", &part))?;
        folder::sync_folder(&self.dir)?;
        Ok(PendingFile(path))
    }

    /// Removes a change that is committed or has failed. A file that cannot be removed is logged; the next process then
    /// applies the change again.
    pub fn remove(&self, file: &PendingFile) {
        if let Err(error) = fs::remove_file(&file.0) {
            tracing::warn!(path = %file.0.display(), %error, "cannot remove a committed change");
        }
    }
}

fn parse(json: &[u8]) -> Result<PendingChange, String> {
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn changes_are_found_again_in_order_until_they_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let (pending, left) = PendingChanges::open(temp.path()).unwrap();
        assert!(left.is_empty());
        let change = |i: usize| PendingChange {
            id: format!("commit-{i}"),
            owner: i.is_multiple_of(2).then(|| "key".to_owned()),
            changes: Changes { mirror: i == 3, ..Changes::delete([format!("d{i}")]) },
        };
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
}
