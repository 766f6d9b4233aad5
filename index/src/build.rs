//! Building an index: beside the old one, made durable, then put in its place at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use walkdir::WalkDir;

use crate::corpus::Corpus;
use crate::dense::{self, VectorWriter, Vectors};
use crate::embed::{Embed, embed_unit};
use crate::error::IndexError;
use crate::folder::{Part, Writing, part, snapshot_name, sync_file, sync_folder};
use crate::index::OpenOptions;
use crate::lexical::{self, LexicalWriter};
use crate::manifest::{Build, Embedder, FORMAT, Manifest, Sum};
use crate::progress::{BuildProgress, Phase};
use crate::snapshot::Snapshot;
use crate::store::{Store, StoreWriter};

/// Passages whose texts are in memory at once while they are embedded.
const WINDOW: usize = 1024;

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
}

impl Default for BuildOptions {
    fn default() -> BuildOptions {
        let threads = available_parallelism().map_or(1, usize::from);
        BuildOptions { replace: false, name: None, batch: 64, threads }
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
    write_vectors(part.path(), embed, options, progress)?;
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
    embed: &dyn Embed,
    options: &BuildOptions,
    progress: &dyn BuildProgress,
) -> Result<(), IndexError> {
    let store = Store::open(&dir.join(part::STORE))?;
    let (flat, total) = (dir.join(part::VECTORS), store.len() as u64);
    let mut writer = VectorWriter::create(&flat)?;
    let mut done = 0;
    progress.update(Phase::Embedding, 0, Some(total));
    let numbers: Vec<u32> = (0..).take(store.len()).collect();
    for window in numbers.chunks(WINDOW) {
        let vectors = embed_window(&store, window, embed, options.batch, &mut |batch| {
            done += batch as u64;
            progress.update(Phase::Embedding, done, Some(total));
        })?;
        vectors.iter().try_for_each(|vector| writer.add(vector))?;
    }
    writer.finish()?;
    let vectors = Vectors::open(&flat, store.len(), embed.dims())?;
    progress.update(Phase::Linking, 0, Some(total));
    dense::build(&vectors, &dir.join(part::GRAPH), options.threads, &|done| {
        progress.update(Phase::Linking, done, Some(total));
    })
}

/// The vectors of some passages, in order. They are embedded from short to long, so that a batch pads little.
fn embed_window(
    store: &Store,
    numbers: &[u32],
    embed: &dyn Embed,
    batch: usize,
    done: &mut dyn FnMut(usize),
) -> Result<Vec<Vec<f32>>, IndexError> {
    let texts = numbers.iter().map(|&number| store.content(number)).collect::<Result<Vec<_>, _>>()?;
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&i| texts[i].len());
    let mut vectors = vec![Vec::new(); texts.len()];
    for places in order.chunks(batch.max(1)) {
        let batch: Vec<&str> = places.iter().map(|&i| texts[i].as_str()).collect();
        let embedded = embed_unit(embed, &batch).map_err(|source| {
            let first = store.passage(numbers[places[0]]).map(|passage| passage.id).unwrap_or_default();
            IndexError::Embed { what: format!("{} passages, the first of them {first:?}", places.len()), source }
        })?;
        places.iter().zip(embedded).for_each(|(&i, vector)| vectors[i] = vector);
        done(places.len());
    }
    Ok(vectors)
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
