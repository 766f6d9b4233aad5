//! `manifest.json`: what an index is, and which files belong to it.
//!
//! The manifest is the index: it names the folder of its snapshot and every file in it, so that replacing this one
//! file by renaming is what publishes a new snapshot.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::error::IndexError;
use crate::layout::{MANIFEST, graph_file, snapshot_file, snapshot_name};

/// The format this program writes and reads.
pub const FORMAT: u32 = 2;

/// What an index is, as it stands in its folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the layout of the folder and of the files in it.
    pub format: u32,
    /// Number of this state of the index, larger than that of every earlier one in the same folder.
    pub snapshot: u64,
    /// Name of the corpus.
    pub corpus: String,
    /// How many passages there are.
    pub passages: u64,
    /// What made the vectors.
    pub embedder: EmbedderInfo,
    /// What its graph is, if it has one.
    pub graph: Option<GraphInfo>,
    /// How the index was built.
    pub build: BuildInfo,
    /// Every file of the snapshot, by its path from the folder of the index, with `/` between the parts.
    pub files: BTreeMap<String, FileChecksum>,
    /// CRC-32 of this manifest as it is written, with this field zero.
    pub checksum: u32,
}

/// The embedder that an index was built with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedderInfo {
    /// As [`Embed::id`](crate::Embed::id) gave it.
    pub id: String,
    /// Numbers per vector.
    pub dims: usize,
}

/// What the graph of an index is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphInfo {
    /// Where its triples are from: `corpus`, what the extractor calls itself, or both.
    pub source: String,
    /// Triples of all passages, in normal form, each as often as it is stated.
    pub triples: u64,
    /// Different phrases.
    pub phrases: u64,
    /// Different facts.
    pub facts: u64,
    /// Pairs of nodes that are joined.
    pub edges: u64,
}

/// What triples that documents bring are from.
const CORPUS: &str = "corpus";

/// Stands between the names of several sources.
const AND: &str = " and ";

impl GraphInfo {
    /// Names what the triples are from: the documents, the extractor now, and the one before.
    pub(crate) fn source(given: bool, extractor: Option<&str>, earlier: Option<&str>) -> String {
        let mut names: Vec<&str> = if given { vec![CORPUS] } else { Vec::new() };
        for name in earlier.into_iter().flat_map(|names| names.split(AND)).chain(extractor) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() { CORPUS.to_owned() } else { names.join(AND) }
    }

    /// What extractor, or which of them, found the triples that no document brought, if any did.
    pub fn extractor(&self) -> Option<&str> {
        let rest = self.source.strip_prefix(CORPUS).map_or(self.source.as_str(), |rest| rest.trim_start_matches(AND));
        (!rest.is_empty()).then_some(rest)
    }

    /// The same, one name after the other.
    pub fn extractors(&self) -> impl Iterator<Item = &str> {
        self.extractor().into_iter().flat_map(|names| names.split(AND))
    }
}

/// The choices that were made when an index was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildInfo {
    /// Version of the program that built it.
    pub version: String,
    /// The chain by which text became terms.
    pub analyzer: String,
    /// Neighbours per node of the vector graph.
    pub connectivity: usize,
    /// Candidates looked at when a vector was added to the graph.
    pub expansion: usize,
}

/// Size and checksum of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChecksum {
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 (IEEE).
    pub crc32: u32,
}

impl FileChecksum {
    /// Reads a whole file.
    pub(crate) fn of(path: &Path) -> Result<FileChecksum, IndexError> {
        let mut file = File::open(path).map_err(IndexError::io("open", path))?;
        let (mut hasher, mut bytes, mut buffer) = (crc32fast::Hasher::new(), 0, vec![0; 1 << 18]);
        loop {
            match file.read(&mut buffer).map_err(IndexError::io("read", path))? {
                0 => return Ok(FileChecksum { bytes, crc32: hasher.finalize() }),
                read => {
                    hasher.update(&buffer[..read]);
                    bytes += read as u64;
                }
            }
        }
    }
}

impl Manifest {
    /// Reads the manifest of the index in `dir`.
    ///
    /// # Errors
    /// If there is no index, its format is another, or the manifest is not as it was written.
    pub fn read(dir: &Path) -> Result<Manifest, IndexError> {
        let path = dir.join(MANIFEST);
        let json = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(IndexError::NoIndex { dir: dir.to_owned() });
            }
            other => other.map_err(IndexError::io("read", &path))?,
        };
        check_format(dir, &path, &json)?;
        let manifest: Manifest =
            serde_json::from_slice(&json).map_err(|error| IndexError::corrupt(&path, error.to_string()))?;
        // Written again it must come out the same to the byte: so no change can hide in what a parser passes over.
        if manifest.to_json() != json || manifest.sum() != manifest.checksum {
            return Err(IndexError::corrupt(&path, "it was changed after it was written"));
        }
        Ok(manifest)
    }

    /// What `open` makes of the manifest in `dir`, and of the one after it where it fails because a build replaced the
    /// snapshot, and removed its files, meanwhile.
    pub(crate) fn newest<T>(dir: &Path, open: impl Fn(Manifest) -> Result<T, IndexError>) -> Result<T, IndexError> {
        let mut manifest = Manifest::read(dir)?;
        loop {
            match open(manifest.clone()) {
                Ok(opened) => return Ok(opened),
                Err(error) => {
                    let now = Manifest::read(dir)?;
                    if now == manifest {
                        return Err(error);
                    }
                    manifest = now;
                }
            }
        }
    }

    /// The manifest as it is written, its checksum taken.
    pub(crate) fn seal(mut self) -> (Manifest, Vec<u8>) {
        self.checksum = self.sum();
        let json = self.to_json();
        (self, json)
    }

    fn sum(&self) -> u32 {
        crc32fast::hash(&Manifest { checksum: 0, ..self.clone() }.to_json())
    }

    fn to_json(&self) -> Vec<u8> {
        // Only maps with keys other than strings and failing writers can make this fail; here is neither.
        #[allow(clippy::expect_used)]
        let mut json = serde_json::to_vec_pretty(self).expect("plain data");
        json.push(b'\n');
        json
    }

    /// Holds every file against its size, and against its checksum too if `checksums` is set. Before that, the list of
    /// files must be whole.
    pub(crate) fn verify(&self, dir: &Path, checksums: bool) -> Result<(), IndexError> {
        self.verify_some(dir, checksums, |_| true)
    }

    /// The same of the files alone that `wanted` says are to be read.
    pub(crate) fn verify_some(
        &self,
        dir: &Path,
        checksums: bool,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(), IndexError> {
        self.check_names().map_err(|message| IndexError::corrupt(&dir.join(MANIFEST), message))?;
        for (name, expected) in self.files.iter().filter(|(name, _)| wanted(name)) {
            let path = dir.join(name);
            let bytes = match std::fs::metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(IndexError::corrupt(&path, "it is missing"));
                }
                other => other.map_err(IndexError::io("read", &path))?.len(),
            };
            if bytes != expected.bytes {
                return Err(IndexError::corrupt(&path, format!("it has {bytes} bytes instead of {}", expected.bytes)));
            }
            if checksums && FileChecksum::of(&path)?.crc32 != expected.crc32 {
                return Err(IndexError::corrupt(&path, "its checksum is wrong"));
            }
        }
        Ok(())
    }

    /// Whether every file lies in the folder of the snapshot, and none that is read is missing from the list: what is
    /// not in it would be opened unchecked.
    fn check_names(&self) -> Result<(), String> {
        let folder = format!("{}/", snapshot_name(self.snapshot));
        let mut names = Vec::with_capacity(self.files.len());
        for name in self.files.keys() {
            let within = name.strip_prefix(&folder).filter(|within| {
                !within.is_empty() && Path::new(within).components().all(|part| matches!(part, Component::Normal(_)))
            });
            names.push(within.ok_or_else(|| format!("it names {name:?}, which is not in {folder}"))?);
        }
        let lexical = format!("{}/", snapshot_file::LEXICAL);
        let plain =
            [snapshot_file::STORE, snapshot_file::VECTORS, snapshot_file::VECTOR_GRAPH, snapshot_file::NODE_PASSAGES]
                .map(str::to_owned);
        let graph =
            self.graph.iter().flat_map(|_| graph_file::ALL).map(|name| format!("{}/{name}", snapshot_file::GRAPH));
        match plain.into_iter().chain(graph).find(|part| !names.contains(&part.as_str())) {
            Some(part) => Err(format!("it does not name {folder}{part}")),
            None if !names.iter().any(|name| name.starts_with(&lexical)) => {
                Err(format!("it names no file in {folder}{lexical}"))
            }
            None => Ok(()),
        }
    }
}

/// Other formats may have other fields, so the number is looked at before anything else.
fn check_format(dir: &Path, path: &Path, json: &[u8]) -> Result<(), IndexError> {
    #[derive(Deserialize)]
    struct FormatVersion {
        format: u64,
    }
    let FormatVersion { format: found } =
        serde_json::from_slice(json).map_err(|error| IndexError::corrupt(path, error.to_string()))?;
    if found == u64::from(FORMAT) {
        Ok(())
    } else {
        Err(IndexError::Version { dir: dir.to_owned(), found, expected: FORMAT })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const WHOLE: [&str; 5] = [
        "snapshot-3/passages.bin",
        "snapshot-3/vectors.bin",
        "snapshot-3/vectors.usearch",
        "snapshot-3/vectors.keys",
        "snapshot-3/lexical/meta.json",
    ];

    fn naming(files: &[&str]) -> Manifest {
        let text = String::new;
        Manifest {
            format: FORMAT,
            snapshot: 3,
            corpus: text(),
            passages: 0,
            embedder: EmbedderInfo { id: text(), dims: 1 },
            graph: None,
            build: BuildInfo { version: text(), analyzer: text(), connectivity: 1, expansion: 1 },
            files: files.iter().map(|&name| (name.to_owned(), FileChecksum { bytes: 0, crc32: 0 })).collect(),
            checksum: 0,
        }
    }

    #[test]
    fn a_manifest_that_leaves_a_needed_file_out_is_refused() {
        naming(&WHOLE).check_names().unwrap();
        for (place, expected) in WHOLE.iter().enumerate() {
            let mut files = WHOLE.to_vec();
            files.remove(place);
            let error = naming(&files).verify(Path::new("index"), false).unwrap_err().to_string();
            let named = expected.trim_end_matches("meta.json");
            assert!(error.contains("manifest.json") && error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_name_outside_the_snapshot_is_refused() {
        for name in [
            "/etc/passwd",
            "../passages.bin",
            "snapshot-2/passages.bin",
            "snapshot-3/",
            "snapshot-3//etc/passwd",
            "snapshot-3/../passages.bin",
            "snapshot-3/lexical/../../passages.bin",
        ] {
            let error = naming(&[&WHOLE[..], &[name]].concat()).verify(Path::new("index"), true).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
