//! Locks that one process holds at a time. The operating system releases a lock when its file is closed, which happens
//! even if the process is killed.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// Locks the file at `path`, creating it if it is missing. `None` if it is locked already.
///
/// # Errors
/// If the file cannot be opened or locked.
pub fn try_take(path: &Path) -> io::Result<Option<File>> {
    let file = open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Locks the file at `path` like [`try_take`], but waits while it is locked.
///
/// # Errors
/// If the file cannot be opened or locked.
pub fn take(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    file.lock()?;
    Ok(file)
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_lock_lasts_until_its_file_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = try_take(&path).unwrap().unwrap();
        assert!(try_take(&path).unwrap().is_none());
        drop(held);
        let held = take(&path).unwrap();
        assert!(try_take(&path).unwrap().is_none());
        drop(held);
        assert!(try_take(&path).unwrap().is_some());
        assert!(try_take(&dir.path().join("missing/lock")).is_err());
    }
}
