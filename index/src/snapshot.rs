//! Snapshot of an index: its files, opened and checked, and the changes since the base snapshot.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde_json::Map;

use crate::condition::{AllowedPassages, Condition, Selections};
use crate::corpus::Document;
use crate::delta::log::{self, LogPrefix, LogRecords};
use crate::delta::{DeltaRecord, DocumentDelta, TouchedNumbers};
use crate::dense::{DenseIndex, GraphFiles, VectorFile};
use crate::embedding_cache::EmbeddingCache;
use crate::error::IndexError;
use crate::graph::{DerivedGraph, Deriving, Graph, StatementChanges, TripleOrigin};
use crate::graph_ranking::GraphRanker;
use crate::layout::{snapshot_file, snapshot_name};
use crate::lexical::LexicalIndex;
use crate::manifest::{Manifest, Verification};
use crate::mapped_faults::FaultMark;
use crate::mapped_files::MappedFiles;
use crate::options::OpenOptions;
use crate::query::Query;
use crate::store::{CurrentStore, PassageStore};

/// Number of documents whose metadata is read between two checks of the deadline.
const BETWEEN_LOOKS: u32 = 1 << 14;

/// All data that a search reads. Immutable; the files stay readable after a later snapshot replaces them.
pub(crate) struct Snapshot {
    pub(crate) manifest: Manifest,
    /// Part of the log of changes that the snapshot has.
    pub(crate) log: LogPrefix,
    pub(crate) store: CurrentStore,
    pub(crate) lexical: LexicalIndex,
    pub(crate) dense: DenseIndex,
    /// `None` if neither the documents nor an extractor supplied triples.
    pub(crate) graph: Option<Graph>,
    pub(crate) ranker: GraphRanker,
    selections: Selections,
    walk_below: usize,
    faults: FaultMark,
    mapped: MappedFiles,
}

/// State of documents and graph after a change.
#[derive(Debug)]
pub(crate) struct ChangedState {
    pub(crate) documents: Arc<DocumentDelta>,
    pub(crate) touched: TouchedNumbers,
    pub(crate) graph: Option<Graph>,
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

    /// Opens the snapshot of `manifest`.
    pub(crate) fn open(dir: &Path, manifest: Manifest, options: &OpenOptions) -> Result<Snapshot, IndexError> {
        let verification = if options.verify { Verification::Checksums } else { Verification::Sizes };
        manifest.verify(dir, verification)?;
        let files = dir.join(snapshot_name(manifest.base()));
        let Some(delta) = manifest.delta.clone() else { return Snapshot::open_files(&files, manifest, options) };
        let records = log::read(&dir.join(&delta.log), delta.bytes, manifest.embedder.dims)?;
        // Without a solver, which `replayed` prepares for the state after the log.
        let base = Snapshot::open_files(&files, manifest.clone(), &OpenOptions { walk_below: 0, ..options.clone() })?;
        Snapshot { walk_below: options.walk_below, ..base }.replayed(dir, manifest, &records)
    }

    /// Opens the files of the base snapshot in the folder `files`, without verifying checksums.
    pub(crate) fn open_files(files: &Path, manifest: Manifest, options: &OpenOptions) -> Result<Snapshot, IndexError> {
        let faults = FaultMark::now(files.parent().unwrap_or(files));
        let mapped = MappedFiles::of(files, &manifest);
        let store = PassageStore::open(&files.join(snapshot_file::STORE))?;
        if store.len() as u64 != manifest.base_passages() {
            let message = format!("it holds {} passages instead of {}", store.len(), manifest.base_passages());
            return Err(IndexError::corrupt(&files.join(snapshot_file::STORE), message));
        }
        let lexical = LexicalIndex::open(&files.join(snapshot_file::LEXICAL), store.len())?;
        let vectors = VectorFile::open(&files.join(snapshot_file::VECTORS), store.len(), manifest.embedder.dims)?;
        let graph = files.join(snapshot_file::VECTOR_GRAPH);
        let keys = files.join(snapshot_file::NODE_PASSAGES);
        let graph = GraphFiles { graph: &graph, keys: &keys };
        let dense = DenseIndex::open(vectors, graph, options)?;
        let open_graph =
            |info| Graph::open(&files.join(snapshot_file::GRAPH), info, store.len(), manifest.embedder.dims);
        let graph = manifest.base_graph().map(open_graph).transpose()?;
        let ranker = GraphRanker::new(graph.as_ref().filter(|_| store.len() <= options.walk_below));
        let delta = Arc::new(DocumentDelta::new(store.count()));
        // Opening reads most of the files, and zeros can pass for a graph.
        faults.check()?;
        Ok(Snapshot {
            manifest,
            log: LogPrefix::default(),
            store: CurrentStore { base: Arc::new(store), delta },
            lexical,
            dense,
            graph,
            ranker,
            selections: Selections::default(),
            walk_below: options.walk_below,
            faults,
            mapped,
        })
    }

    /// Applies the changes of a record to documents and graph, but not to the lexical and the dense index.
    pub(crate) fn changed(
        &self,
        record: &DeltaRecord,
        deriving: Deriving<'_>,
    ) -> Result<(ChangedState, DerivedGraph), IndexError> {
        change(&self.store, self.graph.as_ref(), record, deriving)
    }

    /// Returns the snapshot in a changed state, described by `manifest`. Its log still lacks the record of the change.
    pub(crate) fn with(&self, manifest: Manifest, state: ChangedState) -> Result<Snapshot, IndexError> {
        let lexical = self.lexical.with_delta(&self.store.base, Arc::clone(&state.documents), Some(&state.touched))?;
        self.finished(manifest, state, lexical)
    }

    /// Returns the snapshot after further records of the log of its base snapshot.
    pub(crate) fn replayed(&self, dir: &Path, manifest: Manifest, added: &LogRecords) -> Result<Snapshot, IndexError> {
        let mut store = self.store.clone();
        let mut graph = self.graph.clone();
        for record in &added.records {
            let (state, _) = change(&store, graph.as_ref(), record, Deriving::Stored(&record.derived))?;
            store.delta = state.documents;
            graph = state.graph;
        }
        let fits = u64::from(store.delta.live()) == manifest.passages && graph.is_some() == manifest.graph.is_some();
        if !fits {
            let log = manifest.delta.as_ref().map(|delta| dir.join(&delta.log)).unwrap_or_default();
            let message = format!("its changes do not lead to {} passages", manifest.passages);
            return Err(IndexError::corrupt(&log, message));
        }
        let lexical = self.lexical.with_delta(&store.base, Arc::clone(&store.delta), None)?;
        // Every changed number is touched, so that no cached selection is outdated.
        let left = store.delta.numbers().collect();
        let came = store.delta.documents().map(|(number, _)| number).collect();
        let state = ChangedState { documents: store.delta, touched: TouchedNumbers { left, came }, graph };
        let snapshot = Snapshot { log: added.end, ..self.finished(manifest, state, lexical)? };
        snapshot.prepare_walk();
        Ok(snapshot)
    }

    /// Prepares walks over the graph, so that no search has to wait for it.
    pub(crate) fn prepare_walk(&self) {
        if let Some(graph) = &self.graph {
            self.ranker.prepare(graph);
        }
    }

    fn finished(&self, manifest: Manifest, state: ChangedState, lexical: LexicalIndex) -> Result<Snapshot, IndexError> {
        let ChangedState { documents, touched, graph } = state;
        let store = CurrentStore { base: Arc::clone(&self.store.base), delta: Arc::clone(&documents) };
        let selections = self.selections.carried(|condition, allowed| {
            allowed.reach(store.bound() as usize);
            touched.left.iter().for_each(|&number| allowed.remove(number));
            for &number in &touched.came {
                if condition.matches(&store.metadata(number)?.unwrap_or_default()) {
                    allowed.insert(number);
                }
            }
            Ok(())
        })?;
        let ranker = self.ranker.renewed(graph.is_some() && store.len() <= self.walk_below);
        let dense = self.dense.with_delta(documents);
        let log = self.log;
        let walk_below = self.walk_below;
        let faults = self.faults;
        let mapped = self.mapped.clone();
        Ok(Snapshot { manifest, log, store, lexical, dense, graph, ranker, selections, walk_below, faults, mapped })
    }

    /// Returns `true` if the files of the base snapshot in `dir`, the folder of the index, are those that are mapped.
    pub(crate) fn maps_files_in(&self, dir: &Path) -> bool {
        MappedFiles::of(&dir.join(snapshot_name(self.manifest.base())), &self.manifest) == self.mapped
    }

    /// Fails if a file could not be read where it is mapped, now or at any time since it was opened; see
    /// [`crate::catch_mapped_faults`].
    pub(crate) fn check_faults(&self) -> Result<(), IndexError> {
        self.faults.check()
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
        let mut allowed = AllowedPassages::none(self.store.bound() as usize);
        // Most corpora have no metadata: the answer for a document without any is computed once.
        let silent = only.matches(&Map::new());
        for number in self.store.numbers() {
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
        memory.publish(self.dense.base(), |number| self.store.base.content(number))?;
        for (_, document) in self.store.delta.documents() {
            memory.publish_row(&document.content(), &document.vector);
        }
        let Some(graph) = &self.graph else { return Ok(()) };
        memory.publish(graph.base_phrase_vectors(), |phrase| Ok(graph.phrase(phrase).to_owned()))?;
        memory.publish(graph.base_fact_vectors(), |fact| Ok(graph.fact_text(fact)))?;
        let added = graph.base_phrase_vectors().count() as u32..graph.phrases() as u32;
        added.for_each(|phrase| memory.publish_row(graph.phrase(phrase), graph.phrase_vector(phrase)));
        let added = graph.base_fact_vectors().count() as u32..graph.facts() as u32;
        added.for_each(|fact| memory.publish_row(&graph.fact_text(fact), graph.fact_vector(fact)));
        Ok(())
    }
}

/// Applies the changes of a record to documents and graph.
pub(crate) fn change(
    store: &CurrentStore,
    graph: Option<&Graph>,
    record: &DeltaRecord,
    deriving: Deriving<'_>,
) -> Result<(ChangedState, DerivedGraph), IndexError> {
    let (documents, touched) = store.delta.applied(&store.base, &record.deleted, &record.upserted)?;
    let documents = Arc::new(documents);
    let changes = StatementChanges { left: &touched.left, came: &touched.came, documents: &documents };
    let changed = graph.map(|graph| graph.changed(changes, deriving)).transpose()?;
    let (graph, derived) = changed.map_or((None, DerivedGraph::default()), |(graph, derived)| (Some(graph), derived));
    Ok((ChangedState { documents, touched, graph }, derived))
}
