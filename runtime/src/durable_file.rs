//! Files that are replaced whole, and survive a loss of power.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file beside `path` and renames it, so that a killed process leaves the old file or the new one.
///
/// # Errors
/// If a file cannot be written, renamed or synced.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    let mut file = File::create(&part)?;
    if let Ok(before) = fs::metadata(path) {
        file.set_permissions(before.permissions())?;
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    sync_parent(path)
}

/// Makes the name of a file or folder durable.
///
/// # Errors
/// If the parent folder cannot be opened or synced.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    // The parent of a bare file name is the empty path, which cannot be opened.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_are_replaced_and_their_names_synced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        for text in ["first, and long", "second"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // A bare file name is one of the working directory.
        sync_parent(Path::new("state.json")).unwrap();
        assert!(sync_parent(&dir.path().join("missing/state.json")).is_err());
    }
}
