//! Links vectors into the nearest-neighbor graph: all of them, or those that a commit adds.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use usearch::Index;

use super::hnsw::{failed, index_options, measure_ourselves, text};
use super::node_passages::NodePassages;
use super::vectors::VectorFile;
use crate::error::IndexError;

/// Files of a nearest-neighbor graph.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GraphFiles<'a> {
    /// The graph itself.
    pub(crate) graph: &'a Path,
    /// Passage of each node.
    pub(crate) keys: &'a Path,
}

/// Nearest-neighbor graph of the previous snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreviousGraph<'a> {
    pub(crate) files: GraphFiles<'a>,
    /// New number of each passage of that snapshot. `None` if the passage or its vector is gone.
    pub(crate) moved: &'a [Option<u32>],
}

/// Largest number of new vectors that one thread links alone. Several threads race for the neighbors of their nodes:
/// they build a different graph each time, now and then one with worse recall.
const LINKED_ALONE: usize = 2048;

/// Links `vectors` on `threads` threads and writes the graph to `files`. Calls `progress` with the number of vectors
/// done. Extends an earlier graph, if there is one, unless too many of its nodes are obsolete. With one thread, or with
/// at most [`LINKED_ALONE`] new vectors, the same vectors, or the same change to the same graph, give the same graph.
pub(crate) fn link(
    vectors: &VectorFile,
    files: GraphFiles<'_>,
    earlier: Option<PreviousGraph<'_>>,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), IndexError> {
    let mut index = Index::new(&index_options(vectors.dims())).map_err(failed("create"))?;
    let grown = earlier.map(|earlier| grown(&mut index, vectors, earlier)).transpose()?.flatten();
    let (mut keys, new) = grown.unwrap_or_else(|| (NodePassages::identity(0), (0..).take(vectors.count()).collect()));
    measure_ourselves(&mut index);
    let threads = if new.len() <= LINKED_ALONE { 1 } else { threads.max(1) };
    index.reserve_capacity_and_threads(keys.nodes() + new.len(), threads).map_err(failed("create"))?;
    add(&index, vectors, &new, keys.nodes(), threads, progress)?;
    new.iter().for_each(|&number| keys.push(number));
    keys.write(files.keys)?;
    save(&index, files.graph)
}

/// Loads the earlier graph into `index`, and returns its nodes and the passages without a node. `None` if a new graph
/// is better: every obsolete node costs each search a little time and recall, so more than a fifth of them is too many.
fn grown(
    index: &mut Index,
    vectors: &VectorFile,
    earlier: PreviousGraph<'_>,
) -> Result<Option<(NodePassages, Vec<u32>)>, IndexError> {
    let keys = NodePassages::open(earlier.files.keys, earlier.moved.len())?.moved(earlier.moved);
    if keys.gone() > keys.nodes() / 5 {
        return Ok(None);
    }
    let new = keys.missing(vectors.count());
    index.load(text(earlier.files.graph)?).map_err(failed("load"))?;
    let fits = index.size() == keys.nodes() && index.dimensions() == vectors.dims();
    fits.then_some(Some((keys, new))).ok_or_else(|| IndexError::corrupt(earlier.files.graph, "it is of other vectors"))
}

/// Adds the vectors of the passages `new`, the first as node `first`.
fn add(
    index: &Index,
    vectors: &VectorFile,
    new: &[u32],
    first: usize,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), IndexError> {
    let done = AtomicUsize::new(vectors.count() - new.len().min(vectors.count()));
    let unknown = || IndexError::Dense { action: "add to", message: "a vector is missing".into() };
    let add_from = |start: usize| -> Result<(), IndexError> {
        // Interleaved, so that one thread adds vectors in order and several add them in nearly the same order.
        for (&number, node) in new.iter().zip(first as u64..).skip(start).step_by(threads) {
            index.add(node, vectors.row(number).ok_or_else(unknown)?).map_err(failed("add to"))?;
            progress(done.fetch_add(1, Ordering::Relaxed) as u64 + 1);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|start| scope.spawn(move || add_from(start))).collect();
        // A panic in a worker is a bug, and is propagated.
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn save(index: &Index, path: &Path) -> Result<(), IndexError> {
    index.save(text(path)?).map_err(|error| IndexError::io("write", path)(std::io::Error::other(error.to_string())))?;
    // usearch ignores errors from closing the file, which may be where a full disk shows.
    let written = std::fs::metadata(path).map_err(IndexError::io("read", path))?.len();
    if written == index.serialized_length() as u64 {
        Ok(())
    } else {
        Err(IndexError::io("write", path)(std::io::ErrorKind::WriteZero.into()))
    }
}
