//! Files that are replaced whole: after a crash, the old or the new content is there, never a mixture.
//!
//! The new content goes to `.<name>.<process>.part` beside the file, which is synced and renamed; then the folder is
//! synced. The temporary file is in the same folder, because a rename is atomic only within a file system, and carries
//! the ID of the process, because another process may write the same file at the same time.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;

/// Replaces the content of a file, or creates it. An existing file keeps its permissions.
///
/// # Errors
/// If a file cannot be written, renamed or synced. An existing file is then unchanged, unless only its folder could not
/// be synced.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, |file| file.write_all(bytes))
}

/// Replaces a file like [`replace`] with what `fill` writes, for contents too large to hold in memory.
///
/// # Errors
/// Same as [`replace`], or the error of `fill`.
pub fn replace_with<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    let create = |part: &Path| {
        let file = File::create(part)?;
        // Before the content is written, because others may not be allowed to read it.
        if let Ok(before) = fs::metadata(path) {
            file.set_permissions(before.permissions())?;
        }
        Ok(file)
    };
    publish(path, create, fill)
}

/// Replaces a file like [`replace`], such that only its owner can read it.
///
/// # Errors
/// Same as [`replace`].
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let create = |part: &Path| {
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(part)
    };
    publish(path, create, |file| file.write_all(bytes))
}

fn publish<E: From<io::Error>>(
    path: &Path,
    create: impl FnOnce(&Path) -> io::Result<File>,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    let part = sibling(path, &format!(".{}.part", process::id()));
    let write = || -> Result<(), E> {
        let mut file = BufWriter::new(create(&part)?);
        fill(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(fs::rename(&part, path)?)
    };
    write().inspect_err(|_| drop(fs::remove_file(&part)))?;
    // Until the folder is synced, a crash of the machine may undo the rename.
    Ok(sync_parent(path)?)
}

/// Hidden sibling of a file or folder: `.<name><end>`.
pub(crate) fn sibling(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(end);
    path.with_file_name(name)
}

/// Returns `true` for the name of a temporary file, which a killed process may have left.
pub fn is_part(name: &str) -> bool {
    let stem = name.strip_prefix('.').and_then(|name| name.strip_suffix(".part"));
    let process = stem.and_then(|stem| stem.rsplit_once('.')).map(|(_, process)| process);
    process.is_some_and(|process| !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Makes the name of a file or folder durable.
///
/// # Errors
/// If the parent folder cannot be opened or synced.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    // The parent of a bare file name is the empty path, which cannot be opened.
    sync(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// Syncs a file, or a folder's entries, to disk on systems where a read-only handle allows this.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn files_are_replaced_and_no_temporary_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        for text in ["first, and long", "second"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        replace_private(&path, b"third").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
        assert_eq!(names(dir.path()), ["state.json"]);
    }

    #[test]
    fn new_content_is_beside_the_file_until_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        replace(&path, b"old").unwrap();
        let filled = replace_with(&path, |file| {
            file.write_all(b"new")?;
            file.flush()?;
            assert_eq!(fs::read(&path)?, b"old");
            let parts: Vec<String> = names(dir.path()).into_iter().filter(|name| is_part(name)).collect();
            assert_eq!(fs::read(dir.path().join(&parts[0]))?, b"new");
            io::Result::Ok(())
        });
        filled.unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        replace(&path, b"old").unwrap();
        let error = replace_with(&path, |file| {
            file.write_all(b"ne")?;
            Err(io::Error::other("the disk is full"))
        });
        assert_eq!(error.unwrap_err().to_string(), "the disk is full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        // A file cannot take the place of a folder.
        fs::create_dir(dir.path().join("b")).unwrap();
        replace(&dir.path().join("b"), b"new").unwrap_err();
        let mut left = names(dir.path());
        left.sort();
        assert_eq!(left, ["a", "b"]);
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_kept_or_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        replace(&path, b"1").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, b"2").unwrap();
        assert_eq!(mode(), 0o640);
        replace_private(&path, b"3").unwrap();
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn the_parent_of_a_bare_name_is_the_working_directory() {
        sync_parent(Path::new("state.json")).unwrap();
        assert!(sync_parent(Path::new("missing/state.json")).is_err());
    }
}
