//! Builds an index beside the old one, makes it durable, and replaces the old one atomically.

mod estimate;
mod passages;
mod seal;
mod snapshot_writer;
mod vectors;

use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use crate::batch_embedder::BatchEmbedder;
use crate::corpus::{Corpus, Document, SkippedFiles};
use crate::embed::Embed;
use crate::embedding_cache::EmbeddingCache;
use crate::error::IndexError;
use crate::extract::Extract;
use crate::folder::LockedFolder;
use crate::manifest::{EmbedderInfo, Manifest};
use crate::options::OpenOptions;
use crate::progress::BuildProgress;
use crate::prompts::Prompts;
use crate::snapshot::Snapshot;

pub(crate) use snapshot_writer::{BaseSnapshot, SnapshotWriter};

/// Options for [`build`].
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Replaces an existing index. If `false`, an existing index is an error and stays unchanged.
    pub replace: bool,
    /// Name of the corpus. `None` uses the name of its file.
    pub name: Option<String>,
    /// Number of texts per call of the embedder.
    pub batch: usize,
    /// Number of threads that link vectors into the nearest-neighbor graph. With one thread, the same vectors always
    /// give the same graph.
    pub threads: usize,
    /// Keeps new vectors in a journal until the index is published, so that a build resumes after being killed.
    /// Temporarily takes as much disk space as the vectors.
    pub journal: bool,
    /// Extractor for documents that bring no triples. With `None`, and if no document brings triples, the index has no
    /// graph.
    pub extract: Option<Arc<dyn Extract>>,
    /// Prompts to put before the texts. `None` uses those of the embedder.
    pub prompts: Option<Prompts>,
}

impl Default for BuildOptions {
    fn default() -> BuildOptions {
        let threads = available_parallelism().map_or(1, usize::from);
        BuildOptions { replace: false, name: None, batch: 64, threads, journal: true, extract: None, prompts: None }
    }
}

/// Result of [`build`].
#[derive(Debug, Clone)]
pub struct BuildReport {
    /// Manifest of the new index.
    pub manifest: Manifest,
    /// Number of malformed records skipped.
    pub skipped: u64,
    /// Files of the corpus's folder that were not read.
    pub skipped_files: SkippedFiles,
    /// Number of passages left out because they repeat an earlier one.
    pub collapsed: u64,
    /// Number of passages longer than the embedder reads, whose vectors cover only their beginnings.
    pub cut: u64,
}

/// Builds an index over `corpus` in the folder `out`.
///
/// All files are written beside the existing ones and synced; renaming the manifest publishes them. If the process ends
/// before that, the old index is unchanged, and the next build removes the remains. Texts that the replaced index or a
/// killed build in the same folder has already embedded are not embedded again.
///
/// # Errors
/// If the corpus cannot be read to its end, the embedder fails, the folder already holds an index and `replace` is
/// `false`, the folder holds other files, another process is building there, or the disk fails.
pub fn build(
    mut corpus: Corpus,
    embed: &dyn Embed,
    out: &Path,
    options: &BuildOptions,
    progress: &dyn BuildProgress,
) -> Result<BuildReport, IndexError> {
    let writing = LockedFolder::lock(out)?;
    if writing.holds_index() && !options.replace {
        return Err(IndexError::Exists { dir: out.to_owned() });
    }
    // An unreadable old manifest must not prevent replacing the index.
    let published = Manifest::read(out).ok();
    let snapshot = writing.next_snapshot(published.as_ref().map(|manifest| manifest.snapshot))?;
    // An unreadable manifest does not tell which snapshot it needs, so none is removed before the new one is there.
    if published.is_some() || !writing.holds_index() {
        writing.sweep(published.as_ref())?;
    }
    let prompts = &options.prompts.clone().unwrap_or_else(|| embed.prompts());
    let old = previous(out, embed, prompts);
    let mut memory = EmbeddingCache::open(out, embed, prompts, options.journal)?;
    if let Some(old) = &old {
        old.remember(&mut memory)?;
    }
    let embedding = BatchEmbedder { embed, prompts, batch: options.batch, memory: &memory };
    let extract = options.extract.as_deref();
    let embedder_source = embed.source();
    let draft = SnapshotWriter { embedding, threads: options.threads, extract, progress, embedder_source };
    let part = writing.create_part(snapshot)?;
    let mut documents = CountedDocuments { corpus: &mut corpus, embed, progress, cut: 0 };
    let graph = draft.write(&part, &mut documents, None)?;
    let cut = documents.cut;
    let name = options.name.clone().unwrap_or_else(|| corpus.name().to_owned());
    let manifest = draft.publish(&writing, part, snapshot, name, graph, 0)?;
    let skipped_files = corpus.skipped_files().clone();
    Ok(BuildReport { manifest, skipped: corpus.skipped(), skipped_files, collapsed: corpus.collapsed(), cut })
}

/// Documents of a corpus. Counts documents longer than the embedder reads, and reports their number when all are read.
struct CountedDocuments<'a> {
    corpus: &'a mut Corpus,
    embed: &'a dyn Embed,
    progress: &'a dyn BuildProgress,
    cut: u64,
}

impl Iterator for CountedDocuments<'_> {
    type Item = Result<Document, IndexError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.corpus.next();
        match &next {
            Some(Ok(document)) => self.cut += u64::from(self.embed.cuts(&document.content())),
            None if self.cut > 0 => self.progress.truncated(self.cut),
            _ => {}
        }
        next
    }
}

/// Opens the published snapshot in `dir` to reuse its vectors. `None` if it is damaged or of another embedder or
/// prompt, which must not prevent a build.
fn previous(dir: &Path, embed: &dyn Embed, prompts: &Prompts) -> Option<Snapshot> {
    let snapshot = Snapshot::open_newest(dir, &OpenOptions::unwalked()).ok()?;
    let EmbedderInfo { id, dims, prompts: earlier, .. } = &snapshot.manifest.embedder;
    let same = id == embed.id() && *dims == embed.dims() && earlier.document == prompts.document;
    same.then_some(snapshot)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Triple;
    use crate::embed::fake::HashEmbed;

    #[test]
    fn what_is_replaced_is_read_and_not_made_ready_for_walks() {
        let temp = tempfile::tempdir().unwrap();
        let embed = HashEmbed::default();
        let triples = Some(vec![Triple::new("Seine", "flows through", "Paris")]);
        let id = "seine".to_owned();
        let title = "Seine".to_owned();
        let text = "The Seine.".to_owned();
        let corpus = Corpus::from_documents("test", vec![Document { id, title, text, triples, metadata: None }]);
        build(corpus, &embed, temp.path(), &BuildOptions::default(), &()).unwrap();
        let old = previous(temp.path(), &embed, &Prompts::default()).unwrap();
        assert!(old.graph.is_some() && !old.ranker.is_whole());
    }
}
