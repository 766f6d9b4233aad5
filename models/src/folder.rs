//! Folders that are there whole or not at all, whatever ends the process or the machine.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::ModelError;

/// A folder in the making: its files are written into [`part`](Self::part), and [`finish`](Self::finish) gives it its name.
///
/// The part is `.<name>.part` beside the target. A folder that has the name already is moved aside to `.<name>.old` for
/// the moment between two renames, and removed in the end. A process that is killed in that moment leaves the old folder
/// as `.<name>.old`, and the next [`begin`](Self::begin) gives it its name back.
#[derive(Debug)]
#[must_use = "nothing has the name before `finish`"]
pub struct Draft {
    path: PathBuf,
    part: PathBuf,
    old: PathBuf,
}

impl Draft {
    /// An empty part for the folder `path`. What a killed process left of an earlier part is removed; the old folder, if
    /// such a process left it without its name, gets that back.
    ///
    /// # Errors
    /// [`ModelError::Io`] when the system refuses.
    pub fn begin(path: &Path) -> Result<Self, ModelError> {
        restore(path)?;
        let (part, old) = (beside(path, ".part"), beside(path, ".old"));
        remove(&part)?;
        fs::create_dir_all(&part).map_err(ModelError::io("create", &part))?;
        Ok(Self { path: path.to_owned(), part, old })
    }

    /// Where the files are written.
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Makes the part reach the disk and puts it in the place of whatever has the name.
    ///
    /// # Errors
    /// [`ModelError::Io`] when the system refuses. The old folder, if there was one, then still has the name, or the new
    /// one has it already.
    pub fn finish(self) -> Result<(), ModelError> {
        let Self { path, part, old } = &self;
        sync_tree(part)?;
        // Only now: until the new files are safe, what an earlier process left moved aside may be all there is.
        remove(old)?;
        swap(part, path, old)?;
        sync(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
        remove(old)
    }
}

impl Drop for Draft {
    /// A part that did not get its name is of no use.
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.part));
    }
}

/// Gives a folder its name back that a process killed between the renames of [`Draft::finish`] left moved aside.
///
/// # Errors
/// [`ModelError::Io`] when the system refuses.
fn restore(path: &Path) -> Result<(), ModelError> {
    let old = beside(path, ".old");
    if old.is_dir() && !path.exists() {
        fs::rename(&old, path).map_err(ModelError::io("move back", &old))?;
    }
    Ok(())
}

/// Gives the part its name, and what had that the name `old`; if that fails, the latter has its name again.
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

/// Removes a folder with everything in it. That it is not there is fine.
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

/// Makes a file, or a folder's entries, reach the disk, where a handle that only reads can do so.
fn sync(path: &Path) -> Result<(), ModelError> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    File::open(path).and_then(|file| file.sync_all()).map_err(ModelError::io("sync", path))
}

/// A hidden name next to a folder.
fn beside(dir: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(dir.file_name().unwrap_or_default());
    name.push(end);
    dir.with_file_name(name)
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
        let draft = Draft::begin(path).unwrap();
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
        let draft = Draft::begin(&path).unwrap();
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
        let draft = Draft::begin(&path).unwrap();
        // The first rename succeeds, the second has nothing to rename.
        fs::remove_dir(&draft.part).unwrap();
        let error = swap(&draft.part, &path, &draft.old).unwrap_err();
        assert!(error.to_string().starts_with("cannot rename"), "{error}");
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "before");
        assert_eq!(names(temp.path()), ["x"]);
    }
}
