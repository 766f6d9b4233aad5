//! Export of an index: reads its documents, to build another index from them.

use std::path::Path;
use std::sync::Arc;

use crate::corpus::Document;
use crate::delta::{DocumentDelta, log};
use crate::error::IndexError;
use crate::graph::{TripleFile, TripleOrigin};
use crate::layout::{graph_file, snapshot_file, snapshot_name};
use crate::manifest::{GraphInfo, Manifest, Verification};
use crate::near_ids::NearestIds;
use crate::store::{CurrentStore, PassageStore};

/// Documents of an index. Needs no embedder and reads only passages, triples and the log of changes, so it works when
/// the embedder is not available or other files are damaged.
#[derive(Debug)]
pub struct Contents {
    manifest: Manifest,
    store: CurrentStore,
    /// `None` if the index has no graph.
    triples: Option<TripleFile>,
}

impl Contents {
    /// Opens the newest snapshot of the index in `dir`. The snapshot stays readable when another replaces it.
    ///
    /// # Errors
    /// If there is no index, it has another format, or its passages or triples are damaged.
    pub fn open(dir: &Path) -> Result<Contents, IndexError> {
        Manifest::newest(dir, |manifest| Contents::of(dir, manifest))
    }

    fn of(dir: &Path, manifest: Manifest) -> Result<Contents, IndexError> {
        let name = snapshot_name(manifest.base());
        let passages = format!("{name}/{}", snapshot_file::STORE);
        let stated = format!("{name}/{}/{}", snapshot_file::GRAPH, graph_file::TRIPLES);
        manifest.verify_some(dir, Verification::Checksums, |file| file == passages || file == stated)?;
        let store = PassageStore::open(&dir.join(&passages))?;
        if store.len() as u64 != manifest.base_passages() {
            let message = format!("it holds {} passages instead of {}", store.len(), manifest.base_passages());
            return Err(IndexError::corrupt(&dir.join(&passages), message));
        }
        let open = |_: &GraphInfo| TripleFile::open(&dir.join(&stated), store.len());
        let triples = manifest.base_graph().map(open).transpose()?;
        let mut changed = DocumentDelta::new(store.count());
        if let Some(delta) = &manifest.delta {
            for record in log::read(&dir.join(&delta.log), delta.bytes, manifest.embedder.dims)?.records {
                changed = changed.applied(&store, &record.deleted, &record.upserted)?.0;
            }
        }
        let store = CurrentStore { base: Arc::new(store), delta: Arc::new(changed) };
        Ok(Contents { manifest, store, triples })
    }

    /// Manifest of the snapshot.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Iterates over all documents in index order, with metadata and triples. Triples are included if the document
    /// brought them, or if an import or a language model supplied them, since those cannot be derived from the text
    /// again. With `all_triples`, triples of the built-in extractor are included as well.
    ///
    /// An error means a damaged record; iteration continues with the next document.
    pub fn documents(&self, all_triples: bool) -> impl Iterator<Item = Result<Document, IndexError>> {
        self.store.numbers().map(move |number| self.document(number, all_triples))
    }

    /// Reads the document with this ID. `None` if there is none.
    ///
    /// # Errors
    /// If its record is damaged.
    pub fn find(&self, id: &str) -> Result<Option<Document>, IndexError> {
        self.store.find(id)?.map(|number| self.document(number, true)).transpose()
    }

    /// Reads up to `limit` documents in index order, from the first or from the one behind the document with the ID
    /// `after`. `None` if there is no such document.
    ///
    /// # Errors
    /// If a record is damaged.
    pub fn page(&self, after: Option<&str>, limit: usize) -> Result<Option<Vec<Document>>, IndexError> {
        let last = match after {
            None => None,
            Some(id) => match self.store.find(id)? {
                None => return Ok(None),
                found => found,
            },
        };
        let numbers = self.store.numbers().skip_while(|&number| last.is_some_and(|last| number <= last));
        numbers.take(limit).map(|number| self.store.document(number)).collect::<Result<_, _>>().map(Some)
    }

    /// Returns up to `limit` IDs that are near to the unknown `id`, nearest first: IDs that differ in case, IDs of its
    /// chunks, IDs that begin with it, and IDs that are a few characters apart.
    ///
    /// # Errors
    /// If a record is damaged.
    pub fn near_ids(&self, id: &str, limit: usize) -> Result<Vec<String>, IndexError> {
        let mut nearest = NearestIds::new(id, limit);
        for number in self.store.numbers() {
            nearest.offer(number, self.store.name(number)?.id);
        }
        Ok(nearest.into_ids())
    }

    fn document(&self, number: u32, all_triples: bool) -> Result<Document, IndexError> {
        let mut document = self.store.document(number)?;
        let is_exported = |origin| match origin {
            TripleOrigin::None => false,
            TripleOrigin::Given | TripleOrigin::Extracted => true,
            TripleOrigin::Builtin => all_triples,
        };
        match self.store.delta.get(number).flatten() {
            Some(changed) if is_exported(changed.origin) => document.triples = Some(changed.triples.clone()),
            Some(_) => {}
            None => {
                if let (Some(triples), Some(info)) = (&self.triples, self.manifest.base_graph())
                    && is_exported(triples.origin(number).resolved_with(info))
                {
                    document.triples = Some(triples.get(number)?);
                }
            }
        }
        Ok(document)
    }
}
