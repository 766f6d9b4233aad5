//! Temporary files for inputs that are opened by path.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Temporary folder, deleted on drop.
pub(super) struct Folder(TempDir);

impl Folder {
    pub(super) fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a new file with this name. Memory maps of an earlier file with the name keep their contents.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).expect("room for a small file");
        path
    }

    /// Places a file of tensors: a single one, or one that `index` names if it is not empty.
    pub(super) fn place_tensors(&self, tensors: &[u8], index: &[u8]) {
        let (single, named) = if index.is_empty() { (tensors, &[][..]) } else { (&[][..], tensors) };
        self.place("model.safetensors", single);
        self.place("model-00001-of-00001.safetensors", named);
    }

    /// Like [`Folder::write`], but creates missing parent folders, and no file if `bytes` is empty.
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

/// Calls `work` with this thread's folder.
pub(super) fn with_folder<T>(work: impl FnOnce(&Folder) -> T) -> T {
    FOLDER.with(work)
}

/// Splits an input at its first `COUNT - 1` zero bytes. The last part may contain more; missing parts are empty.
pub(super) fn parts<const COUNT: usize>(data: &[u8]) -> [&[u8]; COUNT] {
    let mut parts = data.splitn(COUNT, |&byte| byte == 0);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}
