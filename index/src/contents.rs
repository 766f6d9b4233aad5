//! The way out of an index: its documents, to build another one of.

use std::path::Path;

use crate::corpus::Document;
use crate::error::IndexError;
use crate::graph::{TripleFile, TripleOrigin};
use crate::layout::{graph_file, snapshot_file, snapshot_name};
use crate::manifest::{GraphInfo, Manifest};
use crate::store::PassageStore;

/// What an index holds. No embedder is needed for it, and nothing is read but the passages and their triples: an index
/// can be left whose embedder is not at hand, and one whose other files are damaged.
#[derive(Debug)]
pub struct Contents {
    manifest: Manifest,
    store: PassageStore,
    /// None where the index has no graph.
    triples: Option<TripleFile>,
}

impl Contents {
    /// Opens the newest snapshot of the index in `dir`, which stays readable when another one replaces it.
    ///
    /// # Errors
    /// If there is no index, its format is another, or its passages or triples are not as they were written.
    pub fn open(dir: &Path) -> Result<Contents, IndexError> {
        Manifest::newest(dir, |manifest| Contents::of(dir, manifest))
    }

    fn of(dir: &Path, manifest: Manifest) -> Result<Contents, IndexError> {
        let name = snapshot_name(manifest.snapshot);
        let passages = format!("{name}/{}", snapshot_file::STORE);
        let stated = format!("{name}/{}/{}", snapshot_file::GRAPH, graph_file::TRIPLES);
        manifest.verify_some(dir, true, |file| file == passages || file == stated)?;
        let store = PassageStore::open(&dir.join(&passages))?;
        if store.len() as u64 != manifest.passages {
            let message = format!("it holds {} passages instead of {}", store.len(), manifest.passages);
            return Err(IndexError::corrupt(&dir.join(&passages), message));
        }
        let open = |_: &GraphInfo| TripleFile::open(&dir.join(&stated), store.len());
        let triples = manifest.graph.as_ref().map(open).transpose()?;
        Ok(Contents { manifest, store, triples })
    }

    /// What stands in the manifest of the snapshot.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Every document in the order of the index, with its metadata and its triples: those that it brought, and those
    /// that a file or a language model gave for it, which nobody could find again from its text. Those that the built-in
    /// extractor found, and would find again, are there if `all_triples` is set.
    ///
    /// An error is that of a damaged file; the documents after it are read all the same.
    pub fn documents(&self, all_triples: bool) -> impl Iterator<Item = Result<Document, IndexError>> {
        (0..self.store.count()).map(move |number| self.document(number, all_triples))
    }

    fn document(&self, number: u32, all_triples: bool) -> Result<Document, IndexError> {
        let mut document = self.store.document(number)?;
        if let (Some(triples), Some(info)) = (&self.triples, &self.manifest.graph) {
            let told = match triples.origin(number).told_by(info) {
                TripleOrigin::None => false,
                TripleOrigin::Given | TripleOrigin::Extracted => true,
                TripleOrigin::Builtin => all_triples,
            };
            if told {
                document.triples = Some(triples.get(number)?);
            }
        }
        Ok(document)
    }
}
