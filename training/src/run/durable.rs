//! Atomic writes of files and directories of a run.

use std::fs;
use std::io;
use std::path::Path;

use waymark_models::durable_file::{self, is_part};
use waymark_models::folder::FolderDraft;

use super::RunError;

/// Writes a file atomically, replacing an existing one.
///
/// # Errors
/// On an I/O error. An existing file is then unchanged.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), RunError> {
    durable_file::replace(path, bytes).map_err(RunError::io("write", path))
}

/// Writes a directory atomically: `fill` writes its files into a temporary directory, which is then renamed. A
/// temporary directory left by a killed process is removed first. Replaces an existing directory as [`FolderDraft`]
/// describes.
///
/// # Errors
/// On an I/O error, or the error of `fill`.
pub fn folder<E: From<RunError>>(path: &Path, fill: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
    let draft = FolderDraft::begin(path).map_err(RunError::from)?;
    fill(draft.part())?;
    Ok(draft.finish().map_err(RunError::from)?)
}

/// Removes temporary files that killed processes left in `dir`. Does nothing if `dir` does not exist. No other
/// process may write to `dir` at the same time.
///
/// # Errors
/// On an I/O error.
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
            // A concurrent `train report` may have finished and renamed its file.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(RunError::io("remove", &path)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Syncs the parent directory of `path`, so that the entry survives a crash.
///
/// # Errors
/// On an I/O error.
pub(crate) fn sync_parent(path: &Path) -> Result<(), RunError> {
    durable_file::sync_parent(path).map_err(RunError::io("sync the directory of", path))
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
    fn directories_are_written_atomically() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("step-1");
        // Temporary files of a killed process.
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
    fn only_temporary_files_of_killed_processes_are_removed() {
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
