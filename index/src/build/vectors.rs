//! The vectors of a snapshot's passages, and the graph of nearest neighbours over them.

use std::path::Path;

use crate::dense::{self, Earlier, Files, Vectors};
use crate::embedding::{Embedding, Texts};
use crate::error::IndexError;
use crate::folder::part;
use crate::progress::{BuildProgress, Phase};
use crate::store::Store;

use super::draft::Base;

/// Embeds the stored passages and joins their vectors.
pub(super) fn write(
    dir: &Path,
    store: &Store,
    embedding: Embedding<'_>,
    base: Option<Base<'_>>,
    threads: usize,
    progress: &dyn BuildProgress,
) -> Result<(), IndexError> {
    let (flat, total) = (dir.join(part::VECTORS), store.count());
    let texts = Texts { what: "passages", count: total, text: &|number| store.content(number) };
    let total = Some(u64::from(total));
    embedding.write(&flat, &texts, &|done| progress.update(Phase::Embedding, done, total))?;
    let vectors = Vectors::open(&flat, store.len(), embedding.embed.dims())?;
    progress.update(Phase::Linking, 0, total);
    let (graph, keys) = (dir.join(part::NEIGHBOURS), dir.join(part::KEYS));
    let files = Files { graph: &graph, keys: &keys };
    let old = base.map(|base| [part::NEIGHBOURS, part::KEYS].map(|name| base.files.join(name)));
    let earlier =
        base.zip(old.as_ref()).map(|(base, [graph, keys])| Earlier { files: Files { graph, keys }, moved: base.moved });
    dense::link(&vectors, files, earlier, threads, &|done| progress.update(Phase::Linking, done, total))
}
