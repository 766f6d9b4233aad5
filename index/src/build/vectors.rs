//! Writes the vectors of a snapshot's passages, and the nearest-neighbor graph over them.

use std::path::Path;

use crate::batch_embedder::{BatchEmbedder, NumberedTexts};
use crate::dense::{self, GraphFiles, PreviousGraph, VectorFile};
use crate::error::IndexError;
use crate::layout::snapshot_file;
use crate::progress::{BuildPhase, BuildProgress};
use crate::store::PassageStore;

use super::snapshot_writer::BaseSnapshot;

/// Embeds the stored passages and links their vectors.
pub(super) fn write(
    dir: &Path,
    store: &PassageStore,
    embedding: BatchEmbedder<'_>,
    base: Option<BaseSnapshot<'_>>,
    threads: usize,
    progress: &dyn BuildProgress,
) -> Result<(), IndexError> {
    let flat = dir.join(snapshot_file::VECTORS);
    let total = store.count();
    let texts = NumberedTexts { what: "passages", count: total, text: &|number| store.content(number) };
    let total = Some(u64::from(total));
    embedding.write(&flat, &texts, &|done| progress.update(BuildPhase::Embedding, done, total))?;
    let vectors = VectorFile::open(&flat, store.len(), embedding.embed.dims())?;
    progress.update(BuildPhase::Linking, 0, total);
    let graph = dir.join(snapshot_file::VECTOR_GRAPH);
    let keys = dir.join(snapshot_file::NODE_PASSAGES);
    let files = GraphFiles { graph: &graph, keys: &keys };
    let old =
        base.map(|base| [snapshot_file::VECTOR_GRAPH, snapshot_file::NODE_PASSAGES].map(|name| base.files.join(name)));
    let moved = base.map(|base| moved_nodes(&base));
    let earlier = old
        .as_ref()
        .zip(moved.as_ref())
        .map(|([graph, keys], moved)| PreviousGraph { files: GraphFiles { graph, keys }, moved });
    dense::link(&vectors, files, earlier, threads, &|done| progress.update(BuildPhase::Linking, done, total))
}

/// Returns the new number of each passage whose vector is in the nearest-neighbor graph of the base snapshot. `None` if
/// the passage is gone or has another vector.
fn moved_nodes(base: &BaseSnapshot<'_>) -> Vec<Option<u32>> {
    let dense = &base.snapshot.dense;
    let same =
        |number| base.snapshot.store.delta.get(number).is_none() || dense.base().row(number) == dense.row(number);
    (0..).zip(base.moved).take(dense.base().count()).map(|(number, moved)| moved.filter(|_| same(number))).collect()
}
