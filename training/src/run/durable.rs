//! Files that are there whole or not at all, whatever ends the process or the machine.
//!
//! Written beside the target, synced, renamed, and then the folder is synced: the order in which POSIX promises that after a
//! crash the name leads either to the old content or to the new one. The part of a file is `.<name>.<process>.part`: a
//! trainer and `train report` may write the same file at the same time.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use waymark_models::folder::Draft;

use super::RunError;

/// Puts a file in the place of whatever has that name.
///
/// # Errors
///
/// When the system refuses. The old file, if there was one, then still stands.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), RunError> {
    write_with(path, |file| file.write_all(bytes))
}

/// As [`write()`], for what is too large to have in memory twice.
///
/// # Errors
///
/// As [`write()`], or when `fill` fails.
pub fn write_with(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), RunError> {
    let part = beside(path, &format!(".{}.part", std::process::id()));
    let filled = File::create(&part).and_then(|file| {
        let mut file = BufWriter::new(file);
        fill(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    });
    if let Err(error) = filled {
        // Of no use to anybody, and nobody else's.
        drop(fs::remove_file(&part));
        return Err(RunError::io("write", &part)(error));
    }
    fs::rename(&part, path).map_err(RunError::io("replace", path))?;
    sync_parent(path)
}

/// Makes a folder of files: `fill` writes them into the part that it is given, and only then does the folder get its
/// name. What a killed process left of an earlier part is removed first.
///
/// A folder that has the name already is replaced as [`Draft`] says.
///
/// # Errors
///
/// When the system refuses, or when `fill` fails.
pub fn folder<E: From<RunError>>(path: &Path, fill: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
    let draft = Draft::begin(path).map_err(RunError::from)?;
    fill(draft.part())?;
    Ok(draft.finish().map_err(RunError::from)?)
}

/// Removes the parts of files that killed processes left in `dir`, which need not be there. For a folder that no other
/// process writes to.
///
/// # Errors
///
/// When the system refuses.
pub fn sweep(dir: &Path) -> Result<(), RunError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(RunError::io("read", dir))?,
    };
    for entry in entries {
        let entry = entry.map_err(RunError::io("read", dir))?;
        let path = entry.path();
        if !is_part(&entry.file_name().to_string_lossy()) || path.is_dir() {
            continue;
        }
        match fs::remove_file(&path) {
            // A `train report` may have come to its end just now.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(RunError::io("remove", &path)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a name is that of the part of a file.
pub(super) fn is_part(name: &str) -> bool {
    let stem = name.strip_prefix('.').and_then(|name| name.strip_suffix(".part"));
    let process = stem.and_then(|stem| stem.rsplit_once('.')).map(|(_, process)| process);
    process.is_some_and(|process| !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Makes the name of a file or folder durable.
///
/// # Errors
///
/// When the system refuses.
pub(crate) fn sync_parent(path: &Path) -> Result<(), RunError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync(parent)
}

/// A folder is synced through a handle on it, as a file is.
fn sync(path: &Path) -> Result<(), RunError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(RunError::io("sync", path))
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(end);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_nothing_stays_beside_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a.toml");
        write(&path, b"first, and long").unwrap();
        write(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(names(temp.path()), ["a.toml"]);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a");
        write(&path, b"old").unwrap();
        let error = write_with(&path, |file| {
            file.write_all(b"ne")?;
            Err(io::Error::other("the disk is full"))
        });
        assert!(error.unwrap_err().to_string().contains("the disk is full"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(temp.path()), ["a"]);
    }

    #[test]
    fn a_folder_is_made_whole_or_not_at_all() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("step-1");
        // What a killed process left.
        fs::create_dir(temp.path().join(".step-1.part")).unwrap();
        fs::write(temp.path().join(".step-1.part/torn"), "x").unwrap();
        let broken: Result<(), RunError> = folder(&path, |part| {
            fs::write(part.join("a"), "1").unwrap();
            Err(RunError::Missing { dir: part.to_owned() })
        });
        assert!(broken.is_err() && !path.exists());
        for content in ["1", "2"] {
            folder::<RunError>(&path, |part| {
                fs::create_dir(part.join("sub")).unwrap();
                fs::write(part.join("sub/a"), content).unwrap();
                Ok(())
            })
            .unwrap();
            assert_eq!(fs::read_to_string(path.join("sub/a")).unwrap(), content);
            assert_eq!(names(&path), ["sub"]);
        }
        assert_eq!(names(temp.path()), ["step-1"]);
    }

    #[test]
    fn what_killed_processes_left_is_swept_away_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        sweep(&temp.path().join("missing")).unwrap();
        let mut others = [".lock", ".part", ".a.part", "a.1.part", ".policy.old", "step-1"].map(str::to_owned);
        for name in others.iter().map(String::as_str).chain([".a.17.part", ".run.toml.8.part"]) {
            fs::write(temp.path().join(name), "x").unwrap();
        }
        sweep(temp.path()).unwrap();
        others.sort();
        assert_eq!(names(temp.path()), others);
    }
}
