//! Record of the last publication that a directory made or fetched, by place. Publishing on top of any other
//! publication is refused, so that two writers cannot replace each other's documents.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::SnapshotError;
use super::published::PublishedIndex;
use crate::durable_file;

/// Name of the file in the directory of an index.
const LINEAGE: &str = ".waymark.published.json";

/// Last publications that a directory made or fetched, by place.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Lineage {
    #[serde(skip)]
    path: PathBuf,
    places: BTreeMap<String, KnownPublication>,
}

/// Last publication that a directory made or fetched.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct KnownPublication {
    /// Number of the publication. 0 if there was none.
    number: u64,
    /// Hash of the manifest that may have been published after it, if the process was killed.
    attempted: Option<String>,
}

impl Lineage {
    /// Reads the record of the directory `dir`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn read(dir: &Path) -> Result<Lineage, SnapshotError> {
        let path = dir.join(LINEAGE);
        let known = match fs::read(&path) {
            Ok(json) => serde_json::from_slice(&json).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Lineage::default()),
            Err(error) => Err(error),
        };
        Ok(Lineage { path: path.clone(), ..known.map_err(SnapshotError::file("read", &path))? })
    }

    /// Returns `true` if `newest`, which is published at `place`, comes from this directory.
    pub(super) fn has(&self, place: &str, newest: &PublishedIndex) -> Result<bool, SnapshotError> {
        let Some(known) = self.places.get(place) else { return Ok(false) };
        let attempted = || Ok::<_, SnapshotError>(known.attempted.as_deref() == Some(&hash(&newest.to_json()?)));
        Ok(known.number == newest.number || attempted()?)
    }

    /// Records that the manifest `json` is about to be published.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn attempt(&mut self, place: &str, json: &[u8]) -> Result<(), SnapshotError> {
        // The number stays: the publication that this one replaces does not come from this directory, even if the
        // attempt fails.
        let number = self.places.get(place).map_or(0, |known| known.number);
        self.set(place, KnownPublication { number, attempted: Some(hash(json)) })
    }

    /// Records the publication `number` as the last one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn know(&mut self, place: &str, number: u64) -> Result<(), SnapshotError> {
        self.set(place, KnownPublication { number, attempted: None })
    }

    fn set(&mut self, place: &str, known: KnownPublication) -> Result<(), SnapshotError> {
        if self.places.get(place) == Some(&known) {
            return Ok(());
        }
        self.places.insert(place.to_owned(), known);
        let json = serde_json::to_vec(self).map_err(io::Error::from);
        let written = json.and_then(|json| durable_file::replace(&self.path, &json));
        written.map_err(SnapshotError::file("write", &self.path))
    }
}

fn hash(json: &[u8]) -> String {
    blake3::hash(json).to_hex().to_string()
}
