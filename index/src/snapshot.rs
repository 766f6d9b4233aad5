//! Snapshot of an index: its files, opened and checked.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde_json::Map;

use crate::condition::{AllowedPassages, Condition, Selections};
use crate::corpus::Document;
use crate::dense::{DenseIndex, GraphFiles, VectorFile};
use crate::embedding_cache::EmbeddingCache;
use crate::error::IndexError;
use crate::graph::{Graph, TripleOrigin};
use crate::graph_ranking::GraphRanker;
use crate::layout::{snapshot_file, snapshot_name};
use crate::lexical::LexicalIndex;
use crate::manifest::Manifest;
use crate::options::OpenOptions;
use crate::query::Query;
use crate::store::PassageStore;

/// Number of documents whose metadata is read between two checks of the deadline.
const BETWEEN_LOOKS: u32 = 1 << 14;

/// All data that a search reads. Immutable; the files stay readable after a later snapshot replaces them.
pub(crate) struct Snapshot {
    pub(crate) manifest: Manifest,
    pub(crate) store: PassageStore,
    pub(crate) lexical: LexicalIndex,
    pub(crate) dense: DenseIndex,
    /// `None` if neither the documents nor an extractor supplied triples.
    pub(crate) graph: Option<Graph>,
    pub(crate) ranker: GraphRanker,
    selections: Selections,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("number", &self.manifest.snapshot).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Opens the snapshot that the manifest in `dir` names.
    pub(crate) fn open_newest(dir: &Path, options: &OpenOptions) -> Result<Snapshot, IndexError> {
        Manifest::newest(dir, |manifest| Snapshot::open(dir, manifest, options))
    }

    fn open(dir: &Path, manifest: Manifest, options: &OpenOptions) -> Result<Snapshot, IndexError> {
        manifest.verify(dir, options.verify)?;
        let files = dir.join(snapshot_name(manifest.snapshot));
        Snapshot::open_files(&files, manifest, options)
    }

    /// Opens the files in the folder `files`, without verifying checksums.
    pub(crate) fn open_files(files: &Path, manifest: Manifest, options: &OpenOptions) -> Result<Snapshot, IndexError> {
        let store = PassageStore::open(&files.join(snapshot_file::STORE))?;
        if store.len() as u64 != manifest.passages {
            let message = format!("it holds {} passages instead of {}", store.len(), manifest.passages);
            return Err(IndexError::corrupt(&files.join(snapshot_file::STORE), message));
        }
        let lexical = LexicalIndex::open(&files.join(snapshot_file::LEXICAL), store.len())?;
        let vectors = VectorFile::open(&files.join(snapshot_file::VECTORS), store.len(), manifest.embedder.dims)?;
        let graph = files.join(snapshot_file::VECTOR_GRAPH);
        let keys = files.join(snapshot_file::NODE_PASSAGES);
        let graph = GraphFiles { graph: &graph, keys: &keys };
        let dense = DenseIndex::open(vectors, graph, options.concurrency, options.exact_below)?;
        let open_graph =
            |info| Graph::open(&files.join(snapshot_file::GRAPH), info, store.len(), manifest.embedder.dims);
        let graph = manifest.graph.as_ref().map(open_graph).transpose()?;
        let ranker = GraphRanker::new(graph.as_ref().filter(|_| store.len() <= options.walk_below));
        Ok(Snapshot { manifest, store, lexical, dense, graph, ranker, selections: Selections::default() })
    }

    /// Reads a document with its metadata and the triples that it brought.
    pub(crate) fn document(&self, number: u32) -> Result<Document, IndexError> {
        let mut document = self.store.document(number)?;
        if let Some(graph) = self.graph.as_ref().filter(|graph| graph.origin(number) == TripleOrigin::Given) {
            document.triples = Some(graph.triples(number)?);
        }
        Ok(document)
    }

    /// Returns the passages that a query may find. `None` allows all.
    pub(crate) fn allowed(&self, query: &Query) -> Result<Option<Arc<AllowedPassages>>, IndexError> {
        let Some(only) = &query.only else { return Ok(None) };
        let allowed = self.selections.get(only, || self.select(only, query))?;
        // A condition that excludes nothing would only slow the searches down.
        Ok((allowed.len() < self.store.len()).then_some(allowed))
    }

    /// Evaluates a condition on the metadata of every document.
    fn select(&self, only: &Condition, query: &Query) -> Result<AllowedPassages, IndexError> {
        let mut allowed = AllowedPassages::none(self.store.len());
        // Most corpora have no metadata: the answer for a document without any is computed once.
        let silent = only.matches(&Map::new());
        for number in 0..self.store.count() {
            if number.is_multiple_of(BETWEEN_LOOKS) {
                query.enter_stage("the metadata was read")?;
            }
            if self.store.metadata(number)?.map_or(silent, |metadata| only.matches(&metadata)) {
                allowed.insert(number);
            }
        }
        Ok(allowed)
    }

    /// Adds the vectors of this snapshot to a cache of embeddings.
    pub(crate) fn remember<'a>(&'a self, memory: &mut EmbeddingCache<'a>) -> Result<(), IndexError> {
        memory.publish(self.dense.vectors(), |number| self.store.content(number))?;
        let Some(graph) = &self.graph else { return Ok(()) };
        memory.publish(graph.phrase_vectors(), |phrase| Ok(graph.phrase(phrase).to_owned()))?;
        memory.publish(graph.fact_vectors(), |fact| Ok(graph.fact_text(fact)))
    }
}
