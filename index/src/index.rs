//! An index, open for searching.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::corpus::Document;
use crate::embed::Embed;
use crate::error::IndexError;
use crate::filter::FactFilter;
use crate::graph::Graph;
use crate::manifest::{GraphInfo, Manifest};
use crate::mode::Mode;
use crate::options::OpenOptions;
use crate::snapshot::Snapshot;

/// What an index is, for people.
#[derive(Debug, Clone, Serialize)]
pub struct IndexInfo {
    /// Where it lies.
    pub dir: PathBuf,
    /// The snapshot that is open.
    pub snapshot: u64,
    /// Name of the corpus.
    pub corpus: String,
    /// How many passages there are.
    pub passages: u64,
    /// The embedder it was built with.
    pub embedder: String,
    /// Numbers per vector.
    pub dims: usize,
    /// What its graph is, if it has one.
    pub graph: Option<GraphInfo>,
    /// The modes it can be searched in.
    pub modes: Vec<Mode>,
    /// Bytes on disk.
    pub bytes: u64,
}

/// An index open for searching, by any number of threads.
pub struct Index {
    pub(crate) snapshot: Snapshot,
    pub(crate) embed: Arc<dyn Embed>,
    pub(crate) filter: Option<Arc<dyn FactFilter>>,
    dir: PathBuf,
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
    /// If there is none, its format is another, a file is not as it was written, or it was built with another embedder
    /// than `embed`.
    pub fn open(dir: &Path, embed: Arc<dyn Embed>) -> Result<Index, IndexError> {
        Index::open_with(dir, embed, &OpenOptions::default())
    }

    /// Opens the index in `dir`.
    ///
    /// # Errors
    /// As [`Index::open`].
    pub fn open_with(dir: &Path, embed: Arc<dyn Embed>, options: &OpenOptions) -> Result<Index, IndexError> {
        // Before its files are read through: whoever watches a folder asks again and again.
        check_embedder(dir, &Manifest::read(dir)?, embed.as_ref())?;
        let snapshot = Snapshot::open_newest(dir, options)?;
        check_embedder(dir, &snapshot.manifest, embed.as_ref())?;
        Ok(Index { snapshot, embed, filter: None, dir: dir.to_owned() })
    }

    /// The same index, which follows only those facts that `filter` keeps. Without one, all are followed that are most
    /// like the query, as in RouteRAG.
    #[must_use]
    pub fn with_fact_filter(mut self, filter: Arc<dyn FactFilter>) -> Index {
        self.filter = Some(filter);
        self
    }

    /// What stands in the manifest of the open snapshot.
    pub fn manifest(&self) -> &Manifest {
        &self.snapshot.manifest
    }

    /// The modes that [`Index::search`] does not refuse.
    pub fn modes(&self) -> &'static [Mode] {
        match self.snapshot.graph {
            Some(_) => &Mode::ALL,
            None => &[Mode::Passage],
        }
    }

    /// The document with this id: its metadata and the triples that it brought included.
    ///
    /// # Errors
    /// If the store is damaged.
    pub fn passage(&self, id: &str) -> Result<Option<Document>, IndexError> {
        let number = self.snapshot.store.find(id)?;
        number.map(|number| self.snapshot.document(number)).transpose()
    }

    /// At most `limit` documents in the order of the index: the first ones, or those that follow the one with the id
    /// `after`. `None` where there is no such document.
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
        (first..store.count())
            .take(limit)
            .map(|number| self.snapshot.document(number))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// The graph of the open snapshot, if it has one.
    pub fn graph(&self) -> Option<&Graph> {
        self.snapshot.graph.as_ref()
    }

    /// The number of the passage with this id, by which [`Graph`] names it.
    ///
    /// # Errors
    /// If the store is damaged.
    pub fn number(&self, id: &str) -> Result<Option<u32>, IndexError> {
        self.snapshot.store.find(id)
    }

    /// The vector of the passage with this number, of length 1 (or all zero); none if there is no such passage.
    pub fn vector(&self, number: u32) -> Option<&[f32]> {
        self.snapshot.dense.vectors().row(number)
    }

    /// What this index is.
    pub fn info(&self) -> IndexInfo {
        let Manifest { snapshot, corpus, passages, embedder, graph, files, .. } = self.manifest();
        IndexInfo {
            dir: self.dir.clone(),
            snapshot: *snapshot,
            corpus: corpus.clone(),
            passages: *passages,
            embedder: embedder.id.clone(),
            dims: embedder.dims,
            graph: graph.clone(),
            modes: self.modes().to_vec(),
            bytes: files.values().map(|file| file.bytes).sum(),
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
