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
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
