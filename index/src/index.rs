//! Index, open for searching.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;

use crate::corpus::Document;
use crate::embed::Embed;
use crate::error::IndexError;
use crate::filter::FactFilter;
use crate::graph::Graph;
use crate::history;
use crate::manifest::{GraphInfo, Manifest};
use crate::mode::Mode;
use crate::options::OpenOptions;
use crate::rerank::Rerank;
use crate::snapshot::Snapshot;

/// Summary of an index.
#[derive(Debug, Clone, Serialize)]
pub struct IndexInfo {
    /// Folder of the index.
    pub dir: PathBuf,
    /// Number of the open snapshot.
    pub snapshot: u64,
    /// Name of the corpus.
    pub corpus: String,
    /// Number of passages.
    pub passages: u64,
    /// ID of the embedder.
    pub embedder: String,
    /// Numbers per vector.
    pub dims: usize,
    /// Statistics of the graph. `None` if the index has no graph.
    pub graph: Option<GraphInfo>,
    /// Supported search modes.
    pub modes: Vec<Mode>,
    /// Size on disk in bytes.
    pub bytes: u64,
}

/// Index open for searching, from any number of threads.
pub struct Index {
    pub(crate) snapshot: Snapshot,
    pub(crate) embed: Arc<dyn Embed>,
    pub(crate) filter: Option<Arc<dyn FactFilter>>,
    pub(crate) reranker: Option<Arc<dyn Rerank>>,
    dir: PathBuf,
    published: Option<SystemTime>,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("dir", &self.dir).field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

impl Index {
    /// Opens the index in `dir` with the default options.
    ///
    /// # Errors
    /// If the folder holds no index, the format version differs, a file is damaged, or the index was built with another
    /// embedder than `embed`.
    pub fn open(dir: &Path, embed: Arc<dyn Embed>) -> Result<Index, IndexError> {
        Index::open_with(dir, embed, &OpenOptions::default())
    }

    /// Opens the index in `dir`.
    ///
    /// # Errors
    /// The errors of [`Index::open`].
    pub fn open_with(dir: &Path, embed: Arc<dyn Embed>, options: &OpenOptions) -> Result<Index, IndexError> {
        // Checked before the files are read through, because a watcher retries again and again.
        check_embedder(dir, &Manifest::read(dir)?, embed.as_ref())?;
        let snapshot = Snapshot::open_newest(dir, options)?;
        // Again, since another build may have published between the two reads.
        check_embedder(dir, &snapshot.manifest, embed.as_ref())?;
        Ok(Index::of(dir, snapshot, embed, None, None))
    }

    /// Text to put before queries.
    pub(crate) fn query_prompt(&self) -> &str {
        &self.snapshot.manifest.embedder.prompts.query
    }

    /// Wraps a snapshot of the index in `dir`.
    pub(crate) fn of(
        dir: &Path,
        snapshot: Snapshot,
        embed: Arc<dyn Embed>,
        filter: Option<Arc<dyn FactFilter>>,
        reranker: Option<Arc<dyn Rerank>>,
    ) -> Index {
        let published = history::published(dir, snapshot.manifest.snapshot);
        Index { snapshot, embed, filter, reranker, dir: dir.to_owned(), published }
    }

    /// Opens a kept snapshot of the index in `dir`; see [`snapshots`](crate::snapshots).
    ///
    /// # Errors
    /// The errors of [`Index::open`], and if the snapshot is not kept.
    pub fn open_snapshot(
        dir: &Path,
        number: u64,
        embed: Arc<dyn Embed>,
        options: &OpenOptions,
    ) -> Result<Index, IndexError> {
        let manifest = history::find(dir, number)?;
        check_embedder(dir, &manifest, embed.as_ref())?;
        let snapshot = Snapshot::open(dir, manifest, options)?;
        Ok(Index::of(dir, snapshot, embed, None, None))
    }

    /// Makes graph searches follow only those facts that `filter` keeps. Without a filter they follow the facts most
    /// similar to the query, as in RouteRAG.
    #[must_use]
    pub fn with_fact_filter(mut self, filter: Arc<dyn FactFilter>) -> Index {
        self.filter = Some(filter);
        self
    }

    /// Lets searches rerank their candidates ([`Query::rerank`](crate::Query)) by `reranker`.
    #[must_use]
    pub fn with_reranker(mut self, reranker: Arc<dyn Rerank>) -> Index {
        self.reranker = Some(reranker);
        self
    }

    /// Returns `true` if searches can rerank their candidates.
    pub fn reranks(&self) -> bool {
        self.reranker.is_some()
    }

    /// Manifest of the open snapshot.
    pub fn manifest(&self) -> &Manifest {
        &self.snapshot.manifest
    }

    /// Time at which the open snapshot was published. `None` if the file system does not tell.
    pub fn published(&self) -> Option<SystemTime> {
        self.published
    }

    /// Search modes that the index supports.
    pub fn modes(&self) -> &'static [Mode] {
        match self.snapshot.graph {
            Some(_) => &Mode::ALL,
            None => &[Mode::Passage],
        }
    }

    /// Reads the document with this ID, including its metadata and the triples that it brought.
    ///
    /// # Errors
    /// If the store is damaged.
    pub fn passage(&self, id: &str) -> Result<Option<Document>, IndexError> {
        let number = self.snapshot.store.find(id)?;
        let document = number.map(|number| self.snapshot.document(number)).transpose()?;
        self.snapshot.check_faults()?;
        Ok(document)
    }

    /// Reads at most `limit` documents in index order, from the beginning or after the document with the ID `after`.
    /// `None` if `after` is the ID of no document.
    ///
    /// # Errors
    /// If a file is damaged.
    pub fn documents(&self, after: Option<&str>, limit: usize) -> Result<Option<Vec<Document>>, IndexError> {
        let store = &self.snapshot.store;
        let first = match after.map(|id| store.find(id)).transpose()? {
            None => 0,
            Some(Some(number)) => number + 1,
            Some(None) => return Ok(None),
        };
        let alive = store.delta.alive();
        let documents = (first..store.bound())
            .filter(|&number| alive.is_none_or(|alive| alive.contains(number)))
            .take(limit)
            .map(|number| self.snapshot.document(number))
            .collect::<Result<_, _>>()?;
        self.snapshot.check_faults()?;
        Ok(Some(documents))
    }

    /// Graph of the open snapshot. `None` if the index has no graph.
    pub fn graph(&self) -> Option<&Graph> {
        self.snapshot.graph.as_ref()
    }

    /// Returns the number of the passage with this ID, by which [`Graph`] refers to it.
    ///
    /// # Errors
    /// If the store is damaged.
    pub fn number(&self, id: &str) -> Result<Option<u32>, IndexError> {
        self.snapshot.store.find(id)
    }

    /// Vector of the passage with this number, of length 1 or all zero. `None` if there is no such passage.
    pub fn vector(&self, number: u32) -> Option<&[f32]> {
        self.snapshot.dense.row(number)
    }

    /// Returns the numbers of the `k` passages nearest to `vector`, best first, with their dot products, as a dense
    /// passage search finds them. Reads no passage. The vector must have length 1, as those of the index have. Public
    /// for benchmarks.
    ///
    /// # Errors
    /// If the vector has another length than those of the index, or the vector graph fails.
    #[doc(hidden)]
    pub fn nearest(&self, vector: &[f32], k: usize) -> Result<Vec<(u32, f32)>, IndexError> {
        let dims = self.manifest().embedder.dims;
        if vector.len() != dims {
            let message = format!("the vector has {} numbers, those of the index have {dims}", vector.len());
            return Err(IndexError::Dense { action: "search", message });
        }
        let found = self.snapshot.dense.search(vector, k, None, None)?;
        self.snapshot.check_faults()?;
        Ok(found.into_iter().map(|scored| (scored.number, scored.score)).collect())
    }

    /// Returns the size of all documents in bytes: their IDs, titles, texts and metadata.
    ///
    /// # Errors
    /// If a file is damaged.
    pub fn document_bytes(&self) -> Result<u64, IndexError> {
        let store = &self.snapshot.store;
        let bytes = store.numbers().map(|number| store.bytes(number)).sum::<Result<u64, IndexError>>()?;
        self.snapshot.check_faults()?;
        Ok(bytes)
    }

    /// Returns a summary of the index.
    pub fn info(&self) -> IndexInfo {
        let Manifest { snapshot, corpus, passages, embedder, graph, files, delta, .. } = self.manifest();
        IndexInfo {
            dir: self.dir.clone(),
            snapshot: *snapshot,
            corpus: corpus.clone(),
            passages: *passages,
            embedder: embedder.id.clone(),
            dims: embedder.dims,
            graph: graph.clone(),
            modes: self.modes().to_vec(),
            bytes: files.values().map(|file| file.bytes).sum::<u64>() + delta.as_ref().map_or(0, |delta| delta.bytes),
        }
    }
}

pub(crate) fn check_embedder(dir: &Path, manifest: &Manifest, embed: &dyn Embed) -> Result<(), IndexError> {
    let built = &manifest.embedder;
    if built.id == embed.id() && built.dims == embed.dims() {
        return Ok(());
    }
    Err(IndexError::Embedder {
        dir: dir.to_owned(),
        built: built.id.clone(),
        built_dims: built.dims,
        given: embed.id().to_owned(),
        given_dims: embed.dims(),
    })
}
