//! `manifest.json`: description of an index and list of its files.
//!
//! The manifest names the folder of its snapshot and every file in that folder. Replacing this one file by a rename
//! therefore publishes a new snapshot.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::checksum::FileChecksum;
use crate::delta::log;
use crate::embed::Embed;
use crate::error::IndexError;
use crate::layout::{MANIFEST, delta_number, graph_file, snapshot_file, snapshot_name};
use crate::prompts::Prompts;

/// Format version that this program writes.
pub const FORMAT: u32 = 4;

/// Oldest format version that this program reads. Format 2 has no delta and no checksums of blocks; format 3 may have
/// the analyzer of words alone, the only one that programs of its time know.
const OLDEST: u32 = 2;

/// Extent of a check of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verification {
    /// Compares the size of each file.
    Sizes,
    /// Compares the size and the checksum of each file.
    Checksums,
}

/// Description of an index, stored as `manifest.json` in its folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the layout of the folder and of its files.
    pub format: u32,
    /// Snapshot number, larger than that of every earlier snapshot in the same folder.
    pub snapshot: u64,
    /// Name of the corpus.
    pub corpus: String,
    /// Number of passages.
    pub passages: u64,
    /// Embedder of the vectors.
    pub embedder: EmbedderInfo,
    /// Statistics of the graph. `None` if the index has no graph.
    pub graph: Option<GraphInfo>,
    /// Settings of the build.
    pub build: BuildInfo,
    /// Changes since the base snapshot. `None` if all documents are in the base snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<DeltaInfo>,
    /// Checksums of every file of the base snapshot, by path relative to the index folder, with `/` as separator.
    pub files: BTreeMap<String, FileChecksum>,
    /// CRC-32 of this manifest as written, with this field set to zero.
    pub checksum: u32,
}

/// Base snapshot of an index and the log of changes since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaInfo {
    /// Number of the base snapshot. Its folder holds all files except the log.
    pub base: u64,
    /// Number of passages in the base snapshot.
    pub passages: u64,
    /// Statistics of the graph of the base snapshot. `None` if it has no graph.
    pub graph: Option<GraphInfo>,
    /// Name of the log in the folder of the index.
    pub log: String,
    /// Length in bytes of the part of the log that belongs to this snapshot.
    pub bytes: u64,
    /// Number of commits since the base snapshot.
    pub commits: u64,
    /// Number of documents changed by these commits; a document counts once per change.
    pub changes: u64,
}

/// Embedder that an index was built with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedderInfo {
    /// ID from [`Embed::id`](crate::Embed::id).
    pub id: String,
    /// Numbers per vector.
    pub dims: usize,
    /// Prompts put before the texts.
    #[serde(default, skip_serializing_if = "Prompts::is_empty")]
    pub prompts: Prompts,
    /// Name or directory by which the embedder can be opened again, from [`Embed::source`](crate::Embed::source).
    /// `None` in indexes that do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl EmbedderInfo {
    /// Returns the name or directory of the embedder, which an index keeps through changes. An index without one takes
    /// that of `embed`.
    pub(crate) fn source_or_that_of<'a>(&'a self, embed: &'a dyn Embed) -> Option<&'a str> {
        self.source.as_deref().or(embed.source())
    }
}

/// Statistics of the graph of an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphInfo {
    /// Source of the triples: `corpus`, the ID of the extractor, or both joined by ` and `.
    pub source: String,
    /// Number of triples over all passages in normal form, counting repetitions.
    pub triples: u64,
    /// Number of distinct phrases.
    pub phrases: u64,
    /// Number of distinct facts.
    pub facts: u64,
    /// Number of connected node pairs.
    pub edges: u64,
}

/// Source name of triples that documents bring.
const CORPUS: &str = "corpus";

/// Separator between the names of several sources.
const AND: &str = " and ";

impl GraphInfo {
    /// Joins the names of the sources: the documents, the earlier extractor, and the current one.
    pub(crate) fn source(given: bool, extractor: Option<&str>, earlier: Option<&str>) -> String {
        let mut names: Vec<&str> = if given { vec![CORPUS] } else { Vec::new() };
        for name in earlier.into_iter().flat_map(|names| names.split(AND)).chain(extractor) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() { CORPUS.to_owned() } else { names.join(AND) }
    }

    /// Returns the extractor, or several joined by ` and `, of the triples that no document brought. `None` if there
    /// are none.
    pub fn extractor(&self) -> Option<&str> {
        let rest = self.source.strip_prefix(CORPUS).map_or(self.source.as_str(), |rest| rest.trim_start_matches(AND));
        (!rest.is_empty()).then_some(rest)
    }

    /// Iterates over the names in [`GraphInfo::extractor`].
    pub fn extractors(&self) -> impl Iterator<Item = &str> {
        self.extractor().into_iter().flat_map(|names| names.split(AND))
    }
}

/// Settings that an index was built with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildInfo {
    /// Version of the program.
    pub version: String,
    /// Name of the text analyzer of the lexical index.
    pub analyzer: String,
    /// Neighbors per node of the vector graph.
    pub connectivity: usize,
    /// Number of candidates examined when adding a vector to the graph.
    pub expansion: usize,
}

impl Manifest {
    /// Reads the manifest of the index in `dir`.
    ///
    /// # Errors
    /// If there is no index, it has another format version, or the manifest was changed after it was written.
    pub fn read(dir: &Path) -> Result<Manifest, IndexError> {
        let path = dir.join(MANIFEST);
        let json = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(IndexError::NoIndex { dir: dir.to_owned() });
            }
            other => other.map_err(IndexError::io("read", &path))?,
        };
        Manifest::parse(dir, &path, &json)
    }

    /// Parses the content of the manifest file `path` of the index in `dir`.
    pub(crate) fn parse(dir: &Path, path: &Path, json: &[u8]) -> Result<Manifest, IndexError> {
        check_format(dir, path, json)?;
        let manifest: Manifest =
            serde_json::from_slice(json).map_err(|error| IndexError::corrupt(path, error.to_string()))?;
        // Serializing again must reproduce every byte, so that no change can hide in what a parser ignores.
        if manifest.to_json() != json || manifest.sum() != manifest.checksum {
            return Err(IndexError::corrupt(path, "it was changed after it was written"));
        }
        Ok(manifest)
    }

    /// Number of the base snapshot. Its folder holds all files except the log.
    pub fn base(&self) -> u64 {
        self.delta.as_ref().map_or(self.snapshot, |delta| delta.base)
    }

    /// Returns `true` if this snapshot needs all files of `earlier`: those of its base snapshot and its log of changes.
    pub(crate) fn keeps_files_of(&self, earlier: &Manifest) -> bool {
        let log = |manifest: &Manifest| manifest.delta.as_ref().map(|delta| delta.log.clone());
        self.files == earlier.files && (earlier.delta.is_none() || log(self) == log(earlier))
    }

    /// Size of the files and of the log of changes in bytes.
    pub fn bytes(&self) -> u64 {
        let files: u64 = self.files.values().map(|file| file.bytes).sum();
        files + self.delta.as_ref().map_or(0, |delta| delta.bytes)
    }

    /// Number of passages in the base snapshot.
    pub(crate) fn base_passages(&self) -> u64 {
        self.delta.as_ref().map_or(self.passages, |delta| delta.passages)
    }

    /// Statistics of the graph of the base snapshot.
    pub(crate) fn base_graph(&self) -> Option<&GraphInfo> {
        self.delta.as_ref().map_or(self.graph.as_ref(), |delta| delta.graph.as_ref())
    }

    /// Calls `open` with the manifest in `dir`. If `open` fails because a build replaced the snapshot meanwhile and
    /// removed its files, tries again with the new manifest.
    pub(crate) fn newest<T>(dir: &Path, open: impl Fn(Manifest) -> Result<T, IndexError>) -> Result<T, IndexError> {
        let mut manifest = Manifest::read(dir)?;
        loop {
            match open(manifest.clone()) {
                Ok(opened) => return Ok(opened),
                Err(error) => {
                    let now = Manifest::read(dir)?;
                    // The same manifest again: nothing was replaced, so the error is about the index itself.
                    if now == manifest {
                        return Err(error);
                    }
                    manifest = now;
                }
            }
        }
    }

    /// Computes the checksum.
    pub(crate) fn seal(mut self) -> Manifest {
        self.checksum = self.sum();
        self
    }

    fn sum(&self) -> u32 {
        // The checksum covers everything but itself.
        crc32fast::hash(&Manifest { checksum: 0, ..self.clone() }.to_json())
    }

    /// JSON of the manifest as written.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        // Serialization fails only for non-string map keys and failing writers; neither occurs here.
        #[allow(clippy::expect_used)]
        let mut json = serde_json::to_vec_pretty(self).expect("plain data");
        json.push(b'\n');
        json
    }

    /// Checks that the list of files is complete, and every file to the extent of `verification`.
    pub(crate) fn verify(&self, dir: &Path, verification: Verification) -> Result<(), IndexError> {
        self.verify_some(dir, verification, |_| true)
    }

    /// Checks like [`Manifest::verify`], but only the files for which `wanted` returns `true`.
    pub(crate) fn verify_some(
        &self,
        dir: &Path,
        verification: Verification,
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
            // The size costs no reading, and most damage is a file that was cut.
            if bytes != expected.bytes {
                return Err(IndexError::corrupt(&path, format!("it has {bytes} bytes instead of {}", expected.bytes)));
            }
            if verification == Verification::Checksums {
                expected.check(&path, self.base())?;
            }
        }
        Ok(())
    }

    /// Checks the file `name` of the snapshot in `dir` before a copy of it is published: a file of the base snapshot
    /// whole, unless all its bytes are `known` to be good, or the records of the log of changes after the first `known`
    /// bytes.
    ///
    /// # Errors
    /// [`IndexError::Corrupt`] with the first damage; and if the file cannot be read.
    pub fn check_file(&self, dir: &Path, name: &str, known: u64) -> Result<(), IndexError> {
        let path = dir.join(name);
        if let Some(sum) = self.files.get(name).filter(|sum| known < sum.bytes) {
            return sum.check(&path, self.base());
        }
        match self.delta.as_ref().filter(|delta| delta.log == name) {
            Some(delta) => log::check(&path, known, delta.bytes, self.embedder.dims),
            None => Ok(()),
        }
    }

    /// Checks that every listed file lies in the folder of the snapshot, and that every file read on opening is listed.
    /// A file missing from the list would be opened unchecked.
    fn check_names(&self) -> Result<(), String> {
        let folder = format!("{}/", snapshot_name(self.base()));
        let mut names = Vec::with_capacity(self.files.len());
        for name in self.files.keys() {
            // A manifest may come from elsewhere: `../` in a name must not reach other files.
            let within = name.strip_prefix(&folder).filter(|within| {
                !within.is_empty() && Path::new(within).components().all(|part| matches!(part, Component::Normal(_)))
            });
            names.push(within.ok_or_else(|| format!("it names {name:?}, which is not in {folder}"))?);
        }
        let lexical = format!("{}/", snapshot_file::LEXICAL);
        let plain =
            [snapshot_file::STORE, snapshot_file::VECTORS, snapshot_file::VECTOR_GRAPH, snapshot_file::NODE_PASSAGES]
                .map(str::to_owned);
        let graph = self
            .base_graph()
            .into_iter()
            .flat_map(|_| graph_file::ALL)
            .map(|name| format!("{}/{name}", snapshot_file::GRAPH));
        if let Some(delta) = &self.delta
            && (delta_number(&delta.log).is_none() || delta.base >= self.snapshot)
        {
            return Err(format!("it names {:?} as the log of changes since snapshot {}", delta.log, delta.base));
        }
        match plain.into_iter().chain(graph).find(|part| !names.contains(&part.as_str())) {
            Some(part) => Err(format!("it does not name {folder}{part}")),
            None if !names.iter().any(|name| name.starts_with(&lexical)) => {
                Err(format!("it names no file in {folder}{lexical}"))
            }
            None => Ok(()),
        }
    }
}

/// Checks the format version first, because other versions may have other fields.
fn check_format(dir: &Path, path: &Path, json: &[u8]) -> Result<(), IndexError> {
    #[derive(Deserialize)]
    struct FormatVersion {
        format: u64,
    }
    let FormatVersion { format: found } =
        serde_json::from_slice(json).map_err(|error| IndexError::corrupt(path, error.to_string()))?;
    if (u64::from(OLDEST)..=u64::from(FORMAT)).contains(&found) {
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
            embedder: EmbedderInfo { id: text(), dims: 1, prompts: Prompts::default(), source: None },
            graph: None,
            delta: None,
            build: BuildInfo { version: text(), analyzer: text(), connectivity: 1, expansion: 1 },
            files: files.iter().map(|&name| (name.to_owned(), FileChecksum::default())).collect(),
            checksum: 0,
        }
    }

    #[test]
    fn a_manifest_that_leaves_a_needed_file_out_is_refused() {
        naming(&WHOLE).check_names().unwrap();
        for (place, expected) in WHOLE.iter().enumerate() {
            let mut files = WHOLE.to_vec();
            files.remove(place);
            let error = naming(&files).verify(Path::new("index"), Verification::Sizes).unwrap_err().to_string();
            let named = expected.trim_end_matches("meta.json");
            assert!(error.contains("manifest.json") && error.contains(named), "{error}");
        }
    }

    #[test]
    fn the_promise_for_upgrades_names_the_formats() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
        let page = std::fs::read_to_string(page).unwrap();
        let promise = format!("Formats {OLDEST} to {FORMAT} are read, {FORMAT} is written");
        assert!(page.contains(&promise), "docs/operations.md lacks: {promise}");
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
            let manifest = naming(&[&WHOLE[..], &[name]].concat());
            let error = manifest.verify(Path::new("index"), Verification::Checksums).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
