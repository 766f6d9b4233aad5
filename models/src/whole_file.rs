//! Files that are written whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file aside, as `fresh`, and renames it to `path`: a crash leaves the old file or the new one, never half of
/// it. After an error `fresh` is removed.
///
/// # Errors
/// If the file cannot be written or renamed.
pub(crate) fn write(path: &Path, fresh: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = File::create(fresh).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(fresh, path)
    });
    written.inspect_err(|_| drop(fs::remove_file(fresh)))
}
