//! Published snapshot: the files of an index, in parts.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::SnapshotError;

/// Version of the layout of manifests and parts.
const FORMAT: u32 = 1;

/// Maximum size of a part in bytes.
pub(super) const PART: u64 = 8 << 20;

/// Maximum number of parts of a file beyond what its size needs. A file with more is split anew.
const SPARE_PARTS: u64 = 64;

/// Files of a published snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PublishedIndex {
    format: u32,
    /// Number of the publication, one more than that of the previous publication.
    pub(super) number: u64,
    /// Number of the snapshot in its index.
    pub(super) snapshot: u64,
    /// Files by their path in the folder of the index, with `/` as separator.
    pub(super) files: BTreeMap<String, PublishedFile>,
}

/// File of a published snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PublishedFile {
    /// Parts in order.
    pub(super) parts: Vec<Part>,
}

/// Part of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) bytes: u64,
    /// BLAKE3 hash, in hexadecimal.
    pub(super) hash: String,
}

impl Part {
    /// Describes the part with these contents.
    pub(super) fn of(bytes: &[u8]) -> Part {
        Part { bytes: bytes.len() as u64, hash: blake3::hash(bytes).to_hex().to_string() }
    }
}

impl PublishedFile {
    /// Size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Returns `true` if the file has so many small parts that it should be split anew.
    pub(super) fn is_fragmented(&self) -> bool {
        self.parts.len() as u64 > self.bytes() / PART + SPARE_PARTS
    }

    /// Returns `true` if `longer` begins with the parts of this file.
    pub(super) fn begins(&self, longer: &PublishedFile) -> bool {
        longer.parts.starts_with(&self.parts)
    }
}

impl PublishedIndex {
    pub(super) fn new(number: u64, snapshot: u64, files: BTreeMap<String, PublishedFile>) -> PublishedIndex {
        PublishedIndex { format: FORMAT, number, snapshot, files }
    }

    /// Parses and checks a manifest.
    ///
    /// # Errors
    /// If it is damaged, of another format, or names a file outside of the index.
    pub(super) fn parse(name: &str, json: &[u8]) -> Result<PublishedIndex, SnapshotError> {
        let damaged = |reason: String| SnapshotError::Damaged { name: name.to_owned(), reason };
        let parsed: PublishedIndex = serde_json::from_slice(json).map_err(|error| damaged(error.to_string()))?;
        if parsed.format != FORMAT {
            return Err(damaged(format!("it has format {}, and this program reads {FORMAT}", parsed.format)));
        }
        if let Some(file) = parsed.files.keys().find(|file| !is_within(file)) {
            return Err(damaged(format!("it names {file:?}, which is not in an index")));
        }
        let is_hash = |part: &Part| part.hash.len() == 64 && part.hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !parsed.parts().all(|part| is_hash(part) && part.bytes <= PART) {
            return Err(damaged("it names a part that no writer writes".to_owned()));
        }
        Ok(parsed)
    }

    /// Serializes the manifest.
    pub(super) fn to_json(&self) -> Result<Vec<u8>, SnapshotError> {
        let unwritable = |error: serde_json::Error| SnapshotError::Damaged {
            name: format!("manifest {}", self.number),
            reason: error.to_string(),
        };
        serde_json::to_vec(self).map_err(unwritable)
    }

    /// Returns the parts of all files.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.files.values().flat_map(|file| &file.parts)
    }

    /// Returns the hashes of all parts.
    pub(super) fn hashes(&self) -> HashSet<&str> {
        self.parts().map(|part| part.hash.as_str()).collect()
    }
}

/// Returns `true` for the path of a file within a folder. A manifest may come from elsewhere, and must not reach other
/// files. Names that begin with a dot are those of locks and records of the folder itself; in subfolders, tantivy has
/// such files too.
fn is_within(name: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    !name.is_empty() && !name.starts_with('.') && Path::new(name).components().all(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn naming(name: &str, part: Part) -> PublishedIndex {
        PublishedIndex::new(1, 1, [(name.to_owned(), PublishedFile { parts: vec![part] })].into())
    }

    #[test]
    fn a_manifest_reaches_no_other_files() {
        let part = || Part::of(b"abc");
        let read = |manifest: &PublishedIndex| PublishedIndex::parse("m", &manifest.to_json().unwrap());
        let good = naming("snapshot-1/graph/facts.bin", part());
        assert_eq!(read(&good).unwrap(), good);
        assert!(read(&naming("snapshot-1/lexical/.managed.json", part())).is_ok());
        for name in ["", "/etc/passwd", "../x", "snapshot-1/../../x", ".waymark.lock"] {
            assert!(read(&naming(name, part())).is_err(), "{name}");
        }
        for part in [Part { hash: "../x".into(), bytes: 1 }, Part { bytes: PART + 1, ..part() }] {
            assert!(read(&naming("a", part)).is_err());
        }
        assert!(read(&PublishedIndex { format: 2, ..good }).unwrap_err().to_string().contains("format 2"));
    }
}
