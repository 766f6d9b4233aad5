//! Building an index: beside the old one, made durable, then put in its place at once.

mod passages;
mod seal;
mod snapshot_writer;
mod vectors;

use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use crate::batch_embedder::BatchEmbedder;
use crate::corpus::Corpus;
use crate::embed::Embed;
use crate::embedding_cache::EmbeddingCache;
use crate::error::IndexError;
use crate::extract::Extract;
use crate::folder::LockedFolder;
use crate::manifest::{EmbedderInfo, Manifest};
use crate::options::OpenOptions;
use crate::progress::BuildProgress;
use crate::snapshot::Snapshot;

pub(crate) use snapshot_writer::{BaseSnapshot, SnapshotWriter};

/// How an index is built.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Replace an index that is already there. Otherwise it is refused and left as it is.
    pub replace: bool,
    /// The name of the corpus, if not that of its file.
    pub name: Option<String>,
    /// Texts that are given to the embedder at once.
    pub batch: usize,
    /// Threads that join the vectors into a graph. With one, the same vectors always give the same graph.
    pub threads: usize,
    /// Keep what is embedded in a journal until the index is published, so that after a kill the next build goes on
    /// where this one was. Takes the size of the vectors on disk once more.
    pub journal: bool,
    /// What finds the triples of documents that bring none. Without it, and without a document that brings any, the
    /// index has no graph.
    pub extract: Option<Arc<dyn Extract>>,
}

impl Default for BuildOptions {
    fn default() -> BuildOptions {
        let threads = available_parallelism().map_or(1, usize::from);
        BuildOptions { replace: false, name: None, batch: 64, threads, journal: true, extract: None }
    }
}

/// What was built.
#[derive(Debug, Clone)]
pub struct BuildReport {
    /// The manifest of the new index.
    pub manifest: Manifest,
    /// Records of the corpus that were passed over as bad.
    pub skipped: u64,
    /// Passages that repeated an earlier one and were left out.
    pub collapsed: u64,
    /// Passages that are longer than the embedder reads: their vectors are those of their beginnings.
    pub cut: u64,
}

/// Builds an index over `corpus` in the folder `out`.
///
/// Everything is written beside what is there and synced; a rename of the manifest then publishes it. Whenever the
/// process ends before that, the old index stands as it was, and what was left is removed by the next build. No text is
/// embedded that the index which is replaced or a killed build in the same folder has embedded already.
///
/// # Errors
/// If the corpus cannot be read to its end, the embedder fails, the folder holds an index already (unless it is to be
/// replaced) or something else, another process is building there, or the disk refuses.
pub fn build(
    mut corpus: Corpus,
    embed: &dyn Embed,
    out: &Path,
    options: &BuildOptions,
    progress: &dyn BuildProgress,
) -> Result<BuildReport, IndexError> {
    let writing = LockedFolder::begin(out)?;
    if writing.holds_index() && !options.replace {
        return Err(IndexError::Exists { dir: out.to_owned() });
    }
    // An old manifest that cannot be read is no reason not to replace it.
    let published = Manifest::read(out).ok().map(|manifest| manifest.snapshot);
    let snapshot = writing.next_snapshot(published)?;
    if published.is_some() || !writing.holds_index() {
        writing.sweep(published)?;
    }
    let old = previous(out, embed);
    let mut memory = EmbeddingCache::open(out, embed, options.journal)?;
    if let Some(old) = &old {
        old.remember(&mut memory)?;
    }
    let embedding = BatchEmbedder { embed, batch: options.batch, memory: &memory };
    let extract = options.extract.as_deref();
    let draft = SnapshotWriter { writing: &writing, embedding, threads: options.threads, extract, progress };
    let part = writing.create_part(snapshot)?;
    let mut cut = 0;
    let mut documents = corpus.by_ref().inspect(|document| {
        cut += u64::from(document.as_ref().is_ok_and(|document| embed.cuts(&document.content())));
    });
    let graph = draft.write(&part, &mut documents, None)?;
    let name = options.name.clone().unwrap_or_else(|| corpus.name().to_owned());
    let manifest = draft.publish(part, snapshot, name, graph)?;
    Ok(BuildReport { manifest, skipped: corpus.skipped(), collapsed: corpus.collapsed(), cut })
}

/// The snapshot that is published in `dir`, where it is whole and of the same embedder: its vectors need not be made
/// again. One that is not is no reason not to build.
fn previous(dir: &Path, embed: &dyn Embed) -> Option<Snapshot> {
    let snapshot = Snapshot::open_newest(dir, &OpenOptions::unwalked()).ok()?;
    let EmbedderInfo { id, dims } = &snapshot.manifest.embedder;
    (id == embed.id() && *dims == embed.dims()).then_some(snapshot)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Triple;
    use crate::corpus::Document;
    use crate::embed::fake::HashEmbed;

    #[test]
    fn what_is_replaced_is_read_and_not_made_ready_for_walks() {
        let (temp, embed) = (tempfile::tempdir().unwrap(), HashEmbed::default());
        let triples = Some(vec![Triple::new("Seine", "flows through", "Paris")]);
        let (id, title, text) = ("seine".to_owned(), "Seine".to_owned(), "The Seine.".to_owned());
        let corpus = Corpus::from_documents("test", vec![Document { id, title, text, triples, metadata: None }]);
        build(corpus, &embed, temp.path(), &BuildOptions::default(), &()).unwrap();
        let old = previous(temp.path(), &embed).unwrap();
        assert!(old.graph.is_some() && !old.ranker.is_whole());
    }
}
