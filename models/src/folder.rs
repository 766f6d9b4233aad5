//! Atomic replacement of folders: after a crash, the old or the new content is there, never a mixture.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::ModelError;
use crate::durable_file::{self, sibling};

/// A folder under construction: its files are written into [`part`](Self::part), and [`finish`](Self::finish)
/// publishes them under the final name.
///
/// The part is `.<name>.part` next to the target. A folder that already has the name is moved to `.<name>.old`
/// between two renames and then removed. If the process is killed between these renames, the old folder remains as
/// `.<name>.old`, and the next [`begin`](Self::begin) restores it.
#[derive(Debug)]
#[must_use = "nothing has the name before `finish`"]
pub struct FolderDraft {
    path: PathBuf,
    part: PathBuf,
    old: PathBuf,
}

impl FolderDraft {
    /// Creates an empty part for the folder `path`. Removes the unfinished part of a killed process, and restores
    /// the old folder if such a process left it moved aside.
    ///
    /// # Errors
    /// [`ModelError::Io`] when a file operation fails.
    pub fn begin(path: &Path) -> Result<Self, ModelError> {
        restore(path)?;
        let part = sibling(path, ".part");
        let old = sibling(path, ".old");
        remove(&part)?;
        fs::create_dir_all(&part).map_err(ModelError::io("create", &part))?;
        Ok(Self { path: path.to_owned(), part, old })
    }

    /// Directory that receives the files.
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Syncs the part to disk and renames it to the final name, replacing an existing folder.
    ///
    /// # Errors
    /// [`ModelError::Io`] when a file operation fails. The name then belongs either to the old folder, if there was
    /// one, or already to the new one.
    pub fn finish(self) -> Result<(), ModelError> {
        let Self { path, part, old } = &self;
        sync_tree(part)?;
        // Removed only now: until the new files are on disk, the folder an earlier process moved aside may be the
        // only copy.
        remove(old)?;
        swap(part, path, old)?;
        // The rename itself must be on disk before the only other copy is removed.
        durable_file::sync_parent(path).map_err(ModelError::io("sync the folder of", path))?;
        remove(old)
    }
}

impl Drop for FolderDraft {
    /// Removes the part if it was not published.
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.part));
    }
}

/// Restores a folder that a process killed between the renames of [`FolderDraft::finish`] left moved aside.
///
/// # Errors
/// [`ModelError::Io`] when a file operation fails.
fn restore(path: &Path) -> Result<(), ModelError> {
    let old = sibling(path, ".old");
    if old.is_dir() && !path.exists() {
        fs::rename(&old, path).map_err(ModelError::io("move back", &old))?;
    }
    Ok(())
}

/// Renames `path` to `old` and `part` to `path`. If the second rename fails, undoes the first.
fn swap(part: &Path, path: &Path, old: &Path) -> Result<(), ModelError> {
    let there = path.exists();
    if there {
        fs::rename(path, old).map_err(ModelError::io("move", path))?;
    }
    fs::rename(part, path).or_else(|error| {
        if there {
            fs::rename(old, path).map_err(ModelError::io("move back", old))?;
        }
        Err(ModelError::io("rename", part)(error))
    })
}

/// Removes a folder with its contents. A missing folder is not an error.
fn remove(path: &Path) -> Result<(), ModelError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ModelError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

fn sync_tree(dir: &Path) -> Result<(), ModelError> {
    for entry in fs::read_dir(dir).map_err(ModelError::io("read", dir))? {
        let path = entry.map_err(ModelError::io("read", dir))?.path();
        if path.is_dir() { sync_tree(&path)? } else { sync(&path)? }
    }
    sync(dir)
}

fn sync(path: &Path) -> Result<(), ModelError> {
    durable_file::sync(path).map_err(ModelError::io("sync", path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn put(path: &Path, content: &str) {
        let draft = FolderDraft::begin(path).unwrap();
        fs::write(draft.part().join("a"), content).unwrap();
        draft.finish().unwrap();
    }

    #[test]
    fn a_folder_takes_the_place_of_another() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("x");
        for content in ["1", "2"] {
            put(&path, content);
            assert_eq!(fs::read_to_string(path.join("a")).unwrap(), content);
            assert_eq!(names(temp.path()), ["x"]);
        }
    }

    #[test]
    fn what_was_killed_between_the_renames_comes_back() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("x");
        put(&path, "before");
        fs::rename(&path, temp.path().join(".x.old")).unwrap();
        fs::create_dir(temp.path().join(".x.part")).unwrap();
        fs::write(temp.path().join(".x.part/torn"), "").unwrap();
        let draft = FolderDraft::begin(&path).unwrap();
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "before");
        assert_eq!(names(draft.part()), [""; 0]);
        drop(draft);
        assert_eq!(names(temp.path()), ["x"]);
        put(&path, "after");
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "after");
        assert_eq!(names(temp.path()), ["x"]);
    }

    #[test]
    fn a_refused_rename_leaves_the_old_folder() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("x");
        put(&path, "before");
        let draft = FolderDraft::begin(&path).unwrap();
        // The first rename succeeds, the second has nothing to rename.
        fs::remove_dir(&draft.part).unwrap();
        let error = swap(&draft.part, &path, &draft.old).unwrap_err();
        assert!(error.to_string().starts_with("cannot rename"), "{error}");
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "before");
        assert_eq!(names(temp.path()), ["x"]);
    }
}
