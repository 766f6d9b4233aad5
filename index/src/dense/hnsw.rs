//! The graph of nearest neighbours (HNSW), by usearch.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use usearch::{Index, IndexOptions, MetricKind, ScalarKind};

use super::kernel::dot;
use super::slots::Slots;
use super::vectors::Vectors;
use crate::error::IndexError;
use crate::scored::{Scored, best};

/// Neighbours per node.
pub(crate) const CONNECTIVITY: usize = 16;
/// Candidates looked at when a node is added.
pub(crate) const EXPANSION_ADD: usize = 128;
/// Candidates looked at when a query is searched, at least.
const EXPANSION_SEARCH: usize = 128;

fn options(dims: usize) -> IndexOptions {
    IndexOptions {
        dimensions: dims,
        // The dot product is the cosine here, and usearch need not take the lengths again.
        metric: MetricKind::IP,
        quantization: ScalarKind::F32,
        connectivity: CONNECTIVITY,
        expansion_add: EXPANSION_ADD,
        expansion_search: EXPANSION_SEARCH,
        multi: false,
    }
}

/// Lets usearch measure distances with our own dot product, which is several times faster than its own is without the
/// library for vector instructions that it would bring along. To be called after a file is opened, which resets it.
fn measure_ourselves(index: &mut Index) {
    let dims = index.dimensions();
    index.change_metric::<f32>(Box::new(move |a, b| {
        // SAFETY: usearch calls this with two stored or queried vectors of the index, which have `dims` numbers each;
        // they are aligned, since in memory usearch aligns them and in a mapped file they begin at a multiple of 4.
        let (a, b) = unsafe { (std::slice::from_raw_parts(a, dims), std::slice::from_raw_parts(b, dims)) };
        1.0 - dot(a, b)
    }));
}

/// Builds the graph over `vectors` with `threads` threads and writes it to `path`. `progress` gets the number of nodes
/// done. With one thread the same vectors give the same graph.
pub(crate) fn build(
    vectors: &Vectors,
    path: &Path,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), IndexError> {
    let threads = threads.clamp(1, vectors.count().max(1));
    let mut index = Index::new(&options(vectors.dims())).map_err(failed("create"))?;
    measure_ourselves(&mut index);
    index.reserve_capacity_and_threads(vectors.count(), threads).map_err(failed("create"))?;
    let done = AtomicUsize::new(0);
    let add_from = |first: usize| -> Result<(), IndexError> {
        for (row, number) in vectors.rows().zip(0..).skip(first).step_by(threads) {
            index.add(number, row).map_err(failed("add to"))?;
            progress(done.fetch_add(1, Ordering::Relaxed) as u64 + 1);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|first| scope.spawn(move || add_from(first))).collect();
        // A panic in a worker is a bug, and goes on as one.
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    index.save(text(path)?).map_err(failed("save"))?;
    // usearch does not look at what closing the file says, and a full disk may say it only then.
    let written = std::fs::metadata(path).map_err(IndexError::io("read", path))?.len();
    if written == index.serialized_length() as u64 {
        Ok(())
    } else {
        Err(IndexError::io("write", path)(std::io::ErrorKind::WriteZero.into()))
    }
}

/// The graph of a snapshot, by memory map.
pub(super) struct Hnsw {
    index: Index,
    slots: Slots,
}

impl fmt::Debug for Hnsw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hnsw").field("size", &self.index.size()).field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl Hnsw {
    /// Opens the graph over `count` vectors, for `slots` searches at once.
    pub(super) fn open(path: &Path, count: usize, dims: usize, slots: usize) -> Result<Hnsw, IndexError> {
        let slots = slots.max(1);
        let damaged = |error: &dyn fmt::Display| IndexError::corrupt(path, error.to_string());
        let mut index = Index::new(&options(dims)).map_err(failed("create"))?;
        index.view(text(path)?).map_err(|error| damaged(&error))?;
        if index.size() != count || index.dimensions() != dims {
            let message = format!("it holds {} vectors of {} numbers", index.size(), index.dimensions());
            return Err(IndexError::corrupt(path, message));
        }
        measure_ourselves(&mut index);
        // usearch gives every running search a thread's worth of scratch and fails where none is free. Opening sets
        // their number to that of the processors, so it has to be said again, and nobody may search without a slot.
        index.reserve_capacity_and_threads(count, slots).map_err(failed("open"))?;
        index.change_expansion_search(EXPANSION_SEARCH);
        Ok(Hnsw { index, slots: Slots::new(slots) })
    }

    #[cfg(test)]
    pub(super) fn hold(&self) -> Option<super::slots::Slot<'_>> {
        self.slots.take(None)
    }

    /// About the `k` nearest, in exact order among those found.
    pub(super) fn nearest(
        &self,
        vectors: &Vectors,
        query: &[f32],
        k: usize,
        deadline: Option<Instant>,
    ) -> Result<Vec<Scored>, IndexError> {
        let wanted = k.min(vectors.count());
        let slot = self.slots.take(deadline).ok_or(IndexError::Deadline { stage: "the vector search" })?;
        let found = self.index.search(query, wanted).map_err(failed("search"))?;
        drop(slot);
        let score = |key: u64| {
            let number = u32::try_from(key).ok()?;
            Some(Scored { number, score: dot(query, vectors.row(number)?) })
        };
        let scored: Option<Vec<_>> = found.keys.into_iter().map(score).collect();
        let unknown = || IndexError::Dense { action: "search", message: "it names a passage that is not there".into() };
        Ok(best(scored.ok_or_else(unknown)?, k))
    }
}

fn failed<E: fmt::Display>(action: &'static str) -> impl FnOnce(E) -> IndexError {
    move |error| IndexError::Dense { action, message: error.to_string() }
}

/// usearch takes paths as text only.
fn text(path: &Path) -> Result<&str, IndexError> {
    path.to_str().ok_or_else(|| IndexError::Io {
        action: "use",
        path: path.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidFilename, "the path is not valid UTF-8"),
    })
}
