//! Content hash of a policy's files.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use blake3::{Hash, Hasher};

use super::error::AgentError;

/// Files of an adapter.
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

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
