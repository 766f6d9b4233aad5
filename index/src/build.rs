//! Building an index: beside the old one, made durable, then put in its place at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use walkdir::WalkDir;

use crate::corpus::Corpus;
use crate::dense::{self, Vectors};
use crate::embed::Embed;
use crate::embedding::{Embedding, Texts};
use crate::error::IndexError;
use crate::extract::Extract;
use crate::folder::{Part, Writing, part, snapshot_name, sync_file, sync_folder};
use crate::index::OpenOptions;
use crate::lexical::{self, LexicalWriter};
use crate::manifest::{Build, Embedder, FORMAT, Manifest, Sum};
use crate::progress::{BuildProgress, Phase};
use crate::snapshot::Snapshot;
use crate::store::{Store, StoreWriter};

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
    /// What finds the triples of documents that bring none. Without it, and without a document that brings any, the
    /// index has no graph.
    pub extract: Option<Arc<dyn Extract>>,
}

impl Default for BuildOptions {
    fn default() -> BuildOptions {
        let threads = available_parallelism().map_or(1, usize::from);
        BuildOptions { replace: false, name: None, batch: 64, threads, extract: None }
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
}

/// Builds an index over `corpus` in the folder `out`.
///
/// Everything is written beside what is there and synced; a rename of the manifest then publishes it. Whenever the
/// process ends before that, the old index stands as it was, and what was left is removed by the next build.
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
    let writing = Writing::begin(out)?;
    if writing.holds_index() && !options.replace {
        return Err(IndexError::Exists { dir: out.to_owned() });
    }
    // An old manifest that cannot be read is no reason not to replace it.
    let published = Manifest::read(out).ok().map(|manifest| manifest.snapshot);
    let snapshot = writing.next_snapshot(published)?;
    if published.is_some() || !writing.holds_index() {
        writing.sweep(published)?;
    }
    let part = writing.create_part(snapshot)?;
    let passages = write_passages(&mut corpus, part.path(), progress)?;
    let store = Store::open(&part.path().join(part::STORE))?;
    let embedding = Embedding { embed, batch: options.batch };
    write_vectors(part.path(), &store, embedding, options.threads, progress)?;
    let manifest = Manifest {
        format: FORMAT,
        snapshot,
        corpus: options.name.clone().unwrap_or_else(|| corpus.name().to_owned()),
        passages,
        embedder: Embedder { id: embed.id().to_owned(), dims: embed.dims() },
        build: Build {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            analyzer: lexical::ANALYZER.to_owned(),
            connectivity: dense::CONNECTIVITY,
            expansion: dense::EXPANSION_ADD,
        },
        files: seal(&part, snapshot, progress)?,
        checksum: 0,
    };
    let (manifest, json) = manifest.seal();
    // Whoever wrote the files said that all went well; nothing is published on their word alone.
    Snapshot::open_files(part.path(), manifest.clone(), &OpenOptions::default())?;
    publish(&writing, part, &manifest, &json, progress)?;
    Ok(BuildReport { manifest, skipped: corpus.skipped(), collapsed: corpus.collapsed() })
}

/// Writes the store and the lexical index in one pass over the corpus.
fn write_passages(corpus: &mut Corpus, dir: &Path, progress: &dyn BuildProgress) -> Result<u64, IndexError> {
    let mut store = StoreWriter::create(&dir.join(part::STORE))?;
    let mut lexical = LexicalWriter::create(&dir.join(part::LEXICAL))?;
    let mut done = 0;
    progress.update(Phase::Reading, 0, None);
    for document in corpus {
        let document = document?;
        if done == u64::from(u32::MAX) {
            return Err(IndexError::TooLarge { limit: done });
        }
        store.add(&document)?;
        lexical.add(&document.title, &document.text)?;
        done += 1;
        progress.update(Phase::Reading, done, None);
    }
    store.finish()?;
    lexical.finish()?;
    progress.update(Phase::Reading, done, Some(done));
    Ok(done)
}

/// Embeds the stored passages and joins their vectors.
fn write_vectors(
    dir: &Path,
    store: &Store,
    embedding: Embedding<'_>,
    threads: usize,
    progress: &dyn BuildProgress,
) -> Result<(), IndexError> {
    let (flat, total) = (dir.join(part::VECTORS), store.count());
    let texts = Texts { what: "passages", count: total, text: &|number| store.content(number) };
    let total = Some(u64::from(total));
    embedding.write(&flat, &texts, &|done| progress.update(Phase::Embedding, done, total))?;
    let vectors = Vectors::open(&flat, store.len(), embedding.embed.dims())?;
    progress.update(Phase::Linking, 0, total);
    dense::build(&vectors, &dir.join(part::GRAPH), threads, &|done| {
        progress.update(Phase::Linking, done, total);
    })
}

/// Syncs every file and folder of the snapshot and takes the sums of its files.
fn seal(part: &Part, snapshot: u64, progress: &dyn BuildProgress) -> Result<BTreeMap<String, Sum>, IndexError> {
    let root = part.path();
    let (mut files, mut folders): (Vec<PathBuf>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    for entry in WalkDir::new(root).sort_by_file_name() {
        let entry = entry.map_err(|error| IndexError::io("read", root)(error.into()))?;
        if entry.file_type().is_dir() {
            folders.push(entry.into_path());
        } else if entry.file_name().to_string_lossy().ends_with(".lock") {
            // tantivy's own, of no use in a snapshot that is never written again.
            std::fs::remove_file(entry.path()).map_err(IndexError::io("remove", entry.path()))?;
        } else {
            files.push(entry.into_path());
        }
    }
    let total = Some(files.len() as u64);
    progress.update(Phase::Sealing, 0, total);
    let mut sums = BTreeMap::new();
    for (path, done) in files.iter().zip(1..) {
        sync_file(path)?;
        let within: Vec<_> = path.strip_prefix(root).into_iter().flatten().map(|part| part.to_string_lossy()).collect();
        sums.insert(format!("{}/{}", snapshot_name(snapshot), within.join("/")), Sum::of(path)?);
        progress.update(Phase::Sealing, done, total);
    }
    folders.iter().try_for_each(|folder| sync_folder(folder))?;
    Ok(sums)
}

fn publish(
    writing: &Writing,
    part: Part,
    manifest: &Manifest,
    json: &[u8],
    progress: &dyn BuildProgress,
) -> Result<(), IndexError> {
    progress.update(Phase::Publishing, 0, Some(3));
    writing.settle(part, manifest.snapshot)?;
    progress.update(Phase::Publishing, 1, Some(3));
    writing.publish(json)?;
    progress.update(Phase::Publishing, 2, Some(3));
    // The new index stands; an old file that will not go is no failure of this build.
    if let Err(error) = writing.sweep(Some(manifest.snapshot)) {
        tracing::warn!(%error, "an old snapshot was left");
    }
    progress.update(Phase::Publishing, 3, Some(3));
    Ok(())
}
