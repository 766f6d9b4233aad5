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

    /// The same, in a folder of this folder if need be; no file where there are no bytes.
    pub(super) fn place(&self, name: &str, bytes: &[u8]) {
        let path = self.path().join(name);
        let _ = fs::remove_file(&path);
        if !bytes.is_empty() {
            fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
            fs::write(&path, bytes).expect("room for a small file");
        }
    }
}

thread_local! {
    static FOLDER: Folder = Folder::new();
}

/// Does something in this thread's folder.
pub(super) fn with_folder<T>(work: impl FnOnce(&Folder) -> T) -> T {
    FOLDER.with(work)
}

/// The parts of an input between its first zero bytes, the last of which may hold others; empty where there are too few.
pub(super) fn parts<const COUNT: usize>(data: &[u8]) -> [&[u8]; COUNT] {
    let mut parts = data.splitn(COUNT, |&byte| byte == 0);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}
