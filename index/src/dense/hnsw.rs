//! Nearest-neighbor graph (HNSW), by usearch.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use usearch::{Index, IndexOptions, MetricKind, ScalarKind};

use super::kernel::{dot, near_dot};
use super::link::GraphFiles;
use super::node_passages::NodePassages;
use super::search_slots::SearchSlots;
use super::vectors::VectorFile;
use crate::error::IndexError;
use crate::options::OpenOptions;
use crate::scored::{Scored, best};

/// Neighbors per node.
pub(crate) const CONNECTIVITY: usize = 16;
/// Number of candidates examined when adding a node.
pub(crate) const EXPANSION_ADD: usize = 128;

/// Returns the options of a vector graph.
pub(super) fn index_options(dims: usize) -> IndexOptions {
    IndexOptions {
        dimensions: dims,
        // Vectors have length 1, so the dot product is the cosine, and usearch need not compute lengths.
        metric: MetricKind::IP,
        quantization: ScalarKind::F32,
        connectivity: CONNECTIVITY,
        expansion_add: EXPANSION_ADD,
        // Building does not use it, and `open` sets it for searches.
        expansion_search: 0,
        multi: false,
    }
}

/// Makes usearch compute distances with our own dot product, which is several times faster than usearch's without its
/// optional SIMD library. Must be called after a file is opened, since opening resets the metric.
pub(super) fn measure_ourselves(index: &mut Index) {
    let dims = index.dimensions();
    index.change_metric::<f32>(Box::new(move |a, b| {
        // SAFETY: usearch calls this with two stored or queried vectors of the index, which have `dims` numbers each;
        // they are aligned, since in memory usearch aligns them and in a mapped file they begin at a multiple of 4.
        let (a, b) = unsafe { (std::slice::from_raw_parts(a, dims), std::slice::from_raw_parts(b, dims)) };
        1.0 - near_dot(a, b)
    }));
}

/// Nearest-neighbor graph of a snapshot, memory-mapped.
pub(super) struct Hnsw {
    index: Index,
    keys: NodePassages,
    slots: SearchSlots,
}

impl fmt::Debug for Hnsw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hnsw").field("size", &self.index.size()).field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl Hnsw {
    /// Opens the graph over `count` vectors.
    pub(super) fn open(
        files: GraphFiles<'_>,
        count: usize,
        dims: usize,
        options: &OpenOptions,
    ) -> Result<Hnsw, IndexError> {
        let path = files.graph;
        let keys = NodePassages::open(files.keys, count)?;
        let slots = options.concurrency.max(1);
        let damaged = |error: &dyn fmt::Display| IndexError::corrupt(path, error.to_string());
        let mut index = Index::new(&index_options(dims)).map_err(failed("create"))?;
        index.view(text(path)?).map_err(|error| damaged(&error))?;
        if index.size() != keys.nodes() || index.dimensions() != dims {
            let message = format!("it holds {} vectors of {} numbers", index.size(), index.dimensions());
            return Err(IndexError::corrupt(path, message));
        }
        measure_ourselves(&mut index);
        // usearch reserves scratch memory per thread and fails if none is free. Opening a file resets the number of
        // threads to that of CPU cores, so it is set again here, and every search must hold a slot.
        index.reserve_capacity_and_threads(keys.nodes(), slots).map_err(failed("open"))?;
        index.change_expansion_search(options.candidates.max(1));
        Ok(Hnsw { index, keys, slots: SearchSlots::new(slots) })
    }

    #[cfg(test)]
    pub(super) fn hold(&self) -> Option<super::search_slots::SearchSlot<'_>> {
        self.slots.take(None)
    }

    /// Returns approximately the `k` nearest passages for which `usable` is `true` (`None` allows all), with exact
    /// scores and order among those found.
    pub(super) fn nearest(
        &self,
        vectors: &VectorFile,
        query: &[f32],
        k: usize,
        deadline: Option<Instant>,
        usable: Option<&dyn Fn(u32) -> bool>,
    ) -> Result<Vec<Scored>, IndexError> {
        let wanted = k.min(vectors.count());
        let slot = self.slots.take(deadline).ok_or(IndexError::Deadline { stage: "the vector search" })?;
        let may_be_found =
            |node| self.keys.passage(node).is_some_and(|number| usable.is_none_or(|usable| usable(number)));
        // An unfiltered search is faster, and possible only if every node is a valid result.
        let found = if self.keys.gone() == 0 && usable.is_none() {
            self.index.search(query, wanted)
        } else {
            self.index.filtered_search(query, wanted, may_be_found)
        };
        let found = found.map_err(failed("search"))?;
        // Scoring needs no scratch memory of usearch, so the next search may start.
        drop(slot);
        let score = |node: u64| {
            let number = self.keys.passage(node)?;
            Some(Scored { number, score: dot(query, vectors.row(number)?) })
        };
        let scored: Option<Vec<_>> = found.keys.into_iter().map(score).collect();
        let unknown = || IndexError::Dense { action: "search", message: "it names a passage that is not there".into() };
        Ok(best(scored.ok_or_else(unknown)?, k))
    }
}

pub(super) fn failed<E: fmt::Display>(action: &'static str) -> impl FnOnce(E) -> IndexError {
    move |error| IndexError::Dense { action, message: error.to_string() }
}

/// Converts a path to UTF-8, which usearch requires.
pub(super) fn text(path: &Path) -> Result<&str, IndexError> {
    path.to_str().ok_or_else(|| IndexError::Io {
        action: "use",
        path: path.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidFilename, "the path is not valid UTF-8"),
    })
}
