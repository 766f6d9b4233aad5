//! What the files of a policy hold, as one hash.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use blake3::{Hash, Hasher};

use super::error::AgentError;

/// The files that an adapter consists of.
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// The BLAKE3 over `text`, which is in `policy.toml`, and the files of the adapter in the folder `adapter`. One that is missing
/// is passed over: whoever loads the adapter says so.
///
/// # Errors
/// [`AgentError::Policy`] naming the file that cannot be read.
pub(super) fn contents(text: &str, adapter: Option<&Path>) -> Result<Hash, AgentError> {
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

/// The hash of a file, if there is one.
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

    /// The hash of a policy's text, and of an adapter of these files.
    fn hash(text: &str, files: &[(&str, &str)]) -> Hash {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        contents(text, Some(dir.path())).unwrap()
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
        assert_eq!(contents("a", None).unwrap(), all[0]);
    }
}
