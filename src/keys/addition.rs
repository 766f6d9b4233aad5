//! Addition of a key to a file of keys.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use waymark_models::durable_file;

use super::entry::KeyEntry;
use super::file;
use super::store::{ApiKeys, KeysError};

/// Error of an addition. The file then has the same keys as before.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The file cannot be read, or a server could not start with its keys and the new one.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
}

/// Appends a key to the file at `path`, which is created if it is missing. Waits while another process changes the
/// file.
///
/// # Errors
/// If the file has a key of the same name or the same digest, or cannot be read or written.
pub fn add_key(path: &Path, entry: &KeyEntry) -> Result<(), AddError> {
    let write = |source| AddError::Write { path: path.to_owned(), source };
    let open = || File::options().create(true).read(true).append(true).open(path);
    let file = file::lock(path, open).map_err(write)?;
    // A server does not start with two keys of one name in its file.
    ApiKeys::open(Some(path), vec![entry.clone()])?;
    append(&file, path, entry).map_err(write)
}

/// Appends a key durably to `file`, which is at `path`.
fn append(mut file: &File, path: &Path, entry: &KeyEntry) -> io::Result<()> {
    let before = file.metadata()?.len();
    // Begins with a line break, because the file may not end in one.
    let lines = format!("\n{entry}");
    let written = file.write_all(lines.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| match before {
        // The file may be new.
        0 => durable_file::sync_parent(&path.canonicalize()?),
        _ => Ok(()),
    });
    if written.is_err() {
        // No server starts with a part of the lines.
        let _ = file.set_len(before);
    }
    written
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::super::key_id::KeyId;
    use super::super::secret::Secret;
    use super::*;

    fn key(id: &str) -> KeyEntry {
        KeyEntry { id: KeyId::new(id), ..KeyEntry::of_environment(&Secret::generate()) }
    }

    #[test]
    fn keys_are_appended_and_a_known_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let alice = key("alice");
        let bob = key("bob");
        add_key(&path, &alice).unwrap();
        add_key(&path, &bob).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("\n{alice}\n{bob}"));
        assert!(matches!(add_key(&path, &key("bob")), Err(AddError::Keys(KeysError::Name(_)))));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        let missing = dir.path().join("missing/keys.toml");
        let refused = add_key(&missing, &alice).unwrap_err().to_string();
        assert!(refused.starts_with("cannot write ") && refused.contains("missing/keys.toml"), "{refused}");
    }
}
