//! Bytes as a file, for what is opened by its path.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder of this thread's own, which goes with it.
pub(super) struct Folder(TempDir);

impl Folder {
    pub(super) fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A new file of this name: what may still be mapped from an earlier one stays as it was.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).expect("room for a small file");
        path
    }
}

thread_local! {
    static FOLDER: Folder = Folder::new();
}

/// Does something in this thread's folder.
pub(super) fn with_folder<T>(work: impl FnOnce(&Folder) -> T) -> T {
    FOLDER.with(work)
}

/// The two parts of an input around its first zero byte; the second is empty where there is none.
pub(super) fn halves(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|&byte| byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[]),
    }
}
