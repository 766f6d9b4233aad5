//! Record of the last publication that a directory made or fetched, by place. Publishing on top of any other
//! publication is refused, so that two writers cannot replace each other's documents.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{self, Path, PathBuf};

use serde::{Deserialize, Serialize};
use waymark_models::durable_file;

use super::SnapshotError;
use super::published::PublishedIndex;

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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct KnownPublication {
    /// Number of the publication. 0 if there was none.
    number: u64,
    /// Hash of its manifest, because a place that was emptied has the same numbers again. `None` in records of earlier
    /// programs, for which the number alone counts.
    manifest: Option<String>,
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
        let Some(known) = self.known(place) else { return Ok(false) };
        let newest_hash = Some(hash(&newest.to_json()?));
        let is_last = known.number == newest.number && (known.manifest.is_none() || known.manifest == newest_hash);
        Ok(is_last || known.attempted == newest_hash)
    }

    /// Records that the manifest `json` is about to be published.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn attempt(&mut self, place: &str, json: &[u8]) -> Result<(), SnapshotError> {
        // The last publication stays: the one that this attempt replaces does not come from this directory, even if
        // the attempt fails.
        let known = self.known(place).cloned().unwrap_or_default();
        self.set(place, KnownPublication { attempted: Some(hash(json)), ..known })
    }

    /// Records `published` as the last publication.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn know(&mut self, place: &str, published: &PublishedIndex) -> Result<(), SnapshotError> {
        let manifest = Some(hash(&published.to_json()?));
        self.set(place, KnownPublication { number: published.number, manifest, attempted: None })
    }

    fn known(&self, place: &str) -> Option<&KnownPublication> {
        // Earlier programs recorded folders by the address as it was given.
        self.places.get(&key(place)).or_else(|| self.places.get(place))
    }

    fn set(&mut self, place: &str, known: KnownPublication) -> Result<(), SnapshotError> {
        let key = key(place);
        if self.places.get(&key) == Some(&known) {
            return Ok(());
        }
        self.places.remove(place);
        self.places.insert(key, known);
        let json = serde_json::to_vec(self).map_err(io::Error::from);
        let written = json.and_then(|json| durable_file::replace(&self.path, &json));
        written.map_err(SnapshotError::file("write", &self.path))
    }
}

/// Returns the name of a place in the record: URLs as they are, and folders by their absolute path, since another
/// process may have another working directory.
fn key(place: &str) -> String {
    if place.contains("://") {
        return place.to_owned();
    }
    let Ok(folder) = path::absolute(place) else { return place.to_owned() };
    // By components, without a slash at the end.
    folder.components().collect::<PathBuf>().display().to_string()
}

fn hash(json: &[u8]) -> String {
    blake3::hash(json).to_hex().to_string()
}
