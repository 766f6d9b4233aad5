//! Content hash of a policy's files.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use blake3::{Hash, Hasher};

use super::error::AgentError;

/// Files of an adapter.
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Checks that a file is below `root` once all symbolic links are resolved.
///
/// # Errors
/// [`AgentError::Policy`] when the file is elsewhere or cannot be found.
pub(super) fn check_below(root: &Path, path: &Path) -> Result<(), AgentError> {
    let refuse = |reason: String| AgentError::Policy { path: path.to_owned(), reason };
    match path.canonicalize() {
        Ok(resolved) if resolved.starts_with(root) => Ok(()),
        // The error does not reveal the target of a link.
        Ok(_) => Err(refuse(format!("the file is not below {}: links must not lead out of it", root.display()))),
        Err(error) => Err(refuse(error.to_string())),
    }
}

/// Checks that an adapter's directory and files are below `root`. Missing files are skipped: loading the adapter
/// reports them.
///
/// # Errors
/// Same as [`check_below`].
pub(super) fn check_adapter_below(root: &Path, adapter: &Path) -> Result<(), AgentError> {
    check_below(root, adapter)?;
    let files = ADAPTER.iter().map(|name| adapter.join(name));
    // A link that leads nowhere counts as present, and is refused; `exists` would skip it.
    files.filter(|file| file.symlink_metadata().is_ok()).try_for_each(|file| check_below(root, &file))
}

/// Returns the BLAKE3 hash over `text`, which is the content of `policy.toml`, and the adapter's files in the directory
/// `adapter`. Missing files are skipped: loading the adapter reports them.
///
/// # Errors
/// [`AgentError::Policy`] with the path of an unreadable file.
pub(super) fn content_hash(text: &str, adapter: Option<&Path>) -> Result<Hash, AgentError> {
    let mut all = Hasher::new();
    all.update(blake3::hash(text.as_bytes()).as_bytes());
    let Some(adapter) = adapter else { return Ok(all.finalize()) };
    for name in ADAPTER {
        let path = adapter.join(name);
        let found = content(&path).map_err(|error| AgentError::Policy { path, reason: error.to_string() })?;
        if let Some(hash) = found {
            // The name tells which file the hash belongs to when the other one is missing.
            all.update(name.as_bytes()).update(hash.as_bytes());
        }
    }
    Ok(all.finalize())
}

/// Returns the hash of a file. `None` if it does not exist.
fn content(path: &Path) -> io::Result<Option<Hash>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut hasher = Hasher::new();
    hasher.update_reader(file)?;
    Ok(Some(hasher.finalize()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns the hash of a policy's text and of an adapter with these files.
    fn hash(text: &str, files: &[(&str, &str)]) -> Hash {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        content_hash(text, Some(dir.path())).unwrap()
    }

    #[test]
    fn every_file_counts_and_none_stands_for_another() {
        let [settings, values] = ADAPTER;
        let all = [
            hash("a", &[]),
            hash("b", &[]),
            hash("a", &[(settings, "{}")]),
            hash("a", &[(values, "{}")]),
            hash("a", &[(settings, "{}"), (values, "{}")]),
            hash("a", &[(settings, "{}"), (values, "[]")]),
        ];
        for (at, hash) in all.iter().enumerate() {
            assert!(!all[..at].contains(hash), "{at}");
        }
        assert_eq!(hash("a", &[(settings, "{}"), ("README.md", "read by nobody")]), all[2], "wherever it lies");
        assert_eq!(content_hash("a", None).unwrap(), all[0]);
    }
}
