//! Merges: write a new base snapshot from a base snapshot and its log, while searches and commits go on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::background::at_low_priority;
use crate::batch_embedder::BatchEmbedder;
use crate::build::{BaseSnapshot, SnapshotWriter};
use crate::commit::CommitOptions;
use crate::delta::DeltaRecord;
use crate::delta::log::{self, LogPrefix, LogRecords};
use crate::embedding_cache::EmbeddingCache;
use crate::error::IndexError;
use crate::folder::{LockedFolder, MergeLock, PartialSnapshot};
use crate::graph::{Deriving, Graph};
use crate::layout::{delta_name, snapshot_name};
use crate::live::LiveIndex;
use crate::manifest::{DeltaInfo, GraphInfo, Manifest, Verification};
use crate::options::OpenOptions;
use crate::progress::{BuildPhase, BuildProgress};
use crate::snapshot::{Snapshot, change};
use crate::store::CurrentStore;

/// Longest time for which a merge waits for a running commit.
const PATIENCE: Duration = Duration::from_secs(60);

/// Result of a merge.
enum Merged {
    /// Published, and searched by the live index.
    Done,
    /// There are no changes to merge, or the merged snapshot would have no graph where the current one has one.
    Nothing,
}

impl LiveIndex {
    /// Writes a new base snapshot with all changes of the log, and publishes it. Returns `true` if it did; `false` if
    /// there are no changes, another merge is running, or the merged snapshot would lose its graph. Searches and
    /// commits go on meanwhile; commits made during the merge are carried over.
    ///
    /// Writes at most about `bytes_per_second`; `None` is unlimited. The work has a low priority and takes
    /// [`CommitOptions::threads`].
    ///
    /// # Errors
    /// If a file is damaged, the index was replaced meanwhile, or the disk fails. The index is unchanged then.
    pub fn merge(&self, options: &CommitOptions, bytes_per_second: Option<u64>) -> Result<bool, IndexError> {
        let Some(lock) = MergeLock::take(&self.dir)? else { return Ok(false) };
        let merge = Merge { live: self, options, lock, bytes_per_second };
        merge.run().map(|merged| matches!(merged, Merged::Done))
    }

    /// Starts a thread that merges the log whenever it has grown large, and ends with the index. Commits of this
    /// process then leave merges to it.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn merge_in_background(
        self: &Arc<Self>,
        options: CommitOptions,
        bytes_per_second: Option<u64>,
        every: Duration,
    ) -> std::io::Result<()> {
        self.merging.store(true, Ordering::Relaxed);
        // A strong reference would keep the index open for as long as its own thread runs.
        let watched = Arc::downgrade(self);
        let work = move || {
            let mut wait = every;
            loop {
                thread::sleep(wait);
                wait = every;
                let Some(live) = watched.upgrade() else { break };
                if !live.current().manifest().needs_merge() {
                    continue;
                }
                let started = Instant::now();
                match live.merge(&options, bytes_per_second) {
                    Ok(true) => tracing::info!(seconds = started.elapsed().as_secs_f64(), "merged the log of changes"),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot merge the log of changes: trying again later");
                        // A merge that failed may have written most of the index, so it is not repeated at once.
                        wait = every.saturating_mul(30);
                    }
                }
            }
        };
        thread::Builder::new().name("index-merge".to_owned()).spawn(work).map(drop)
    }
}

struct Merge<'a> {
    live: &'a LiveIndex,
    options: &'a CommitOptions,
    lock: MergeLock,
    bytes_per_second: Option<u64>,
}

/// Merged snapshot, and the commits made during the merge.
struct MergedTail {
    /// Manifest of the merged snapshot, under the number of the one it was made from.
    merged: Manifest,
    store: CurrentStore,
    graph: Option<Graph>,
    /// Records carried over, to write to the new log.
    records: Vec<DeltaRecord>,
    /// Part of the old log that ends with the last carried record.
    end: LogPrefix,
}

impl Merge<'_> {
    fn run(&self) -> Result<Merged, IndexError> {
        if self.live.current().manifest().delta.is_none() {
            return Ok(Merged::Nothing);
        }
        // While another process holds the lock, nothing could be published, so nothing is written.
        self.with_lock(|_| self.live.catch_up())?;
        let base = self.live.current();
        let base = &base.snapshot;
        let Some(delta) = base.manifest.delta.clone() else { return Ok(Merged::Nothing) };
        let part = self.lock.create_part(base.manifest.snapshot)?;
        let merged = at_low_priority(|| self.write(base, &part))?;
        // Without any triple, a new base snapshot has no graph. This merge is given up; a later commit that brings
        // triples decides about the graph.
        if merged.graph.is_some() != base.graph.is_some() {
            return Ok(Merged::Nothing);
        }
        let unwalked = OpenOptions { walk_below: 0, ..self.live.options.clone() };
        let Snapshot { store, graph, .. } = Snapshot::open_files(part.path(), merged.clone(), &unwalked)?;
        let mut tail = MergedTail { merged, store, graph, records: Vec::new(), end: base.log };
        // Most of the commits made meanwhile are carried over before the lock is taken, because the lock delays the
        // next commit. Each round has less to carry than the one before.
        for _ in 0..3 {
            let now = Manifest::read(&self.live.dir)?;
            self.carry(&mut tail, &delta, &now)?;
        }
        self.with_lock(|writing| {
            self.live.catch_up()?;
            let now = Manifest::read(&self.live.dir)?;
            self.carry(&mut tail, &delta, &now)?;
            self.publish(writing, part, tail, &now)
        })?;
        Ok(Merged::Done)
    }

    /// Calls `work` with the lock of the folder, waiting for a running commit.
    fn with_lock(&self, work: impl FnOnce(&LockedFolder) -> Result<(), IndexError>) -> Result<(), IndexError> {
        let end = Instant::now() + PATIENCE;
        let publishing = &self.live.publishing;
        loop {
            // Set before the lock is taken, so that no commit takes this merge for another process, and only for the
            // attempt, so that no commit waits while another process holds the lock.
            publishing.store(true, Ordering::SeqCst);
            match LockedFolder::lock(&self.live.dir) {
                Err(IndexError::Locked { .. }) if Instant::now() < end => publishing.store(false, Ordering::SeqCst),
                locked => {
                    let done = locked.and_then(|writing| work(&writing));
                    publishing.store(false, Ordering::SeqCst);
                    return done;
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes the files of the merged snapshot.
    fn write(&self, base: &Snapshot, part: &PartialSnapshot) -> Result<Manifest, IndexError> {
        let prompts = &base.manifest.embedder.prompts;
        let mut memory = EmbeddingCache::open(&self.live.dir, self.live.embed.as_ref(), prompts, false)?;
        base.remember(&mut memory)?;
        let embed = self.live.embed.as_ref();
        let embedding = BatchEmbedder { embed, prompts, batch: self.options.batch, memory: &memory };
        let progress = &Pace::new(self.bytes_per_second);
        let embedder_source = base.manifest.embedder.source_or_that_of(embed);
        let threads = self.options.threads;
        let draft = SnapshotWriter { embedding, threads, extract: None, progress, embedder_source };
        let mut next = 0..;
        let live = |number| base.store.delta.alive().is_none_or(|alive| alive.contains(number));
        // Passages that are left move up into the numbers of deleted ones.
        let moved = (0..base.store.bound()).map(|number| live(number).then(|| next.next()).flatten());
        let moved: Vec<Option<u32>> = moved.collect();
        let files = self.live.dir.join(snapshot_name(base.manifest.base()));
        let goes_on = BaseSnapshot { snapshot: base, files: &files, moved: &moved, again: None };
        let mut documents = base.store.numbers().map(|number| base.document(number));
        let graph = draft.write(part, &mut documents, Some(goes_on))?;
        // The copied files must be intact: damage must not get a fresh checksum.
        base.manifest.verify(&self.live.dir, Verification::Checksums)?;
        // Files that were repaired meanwhile are intact, unlike those that were copied.
        if !base.maps_files_in(&self.live.dir) {
            return Err(IndexError::Replaced { dir: self.live.dir.clone() });
        }
        let source = base.manifest.graph.as_ref().map(|graph| graph.source.clone());
        let graph = graph.map(|graph| GraphInfo { source: source.unwrap_or_else(|| graph.source.clone()), ..graph });
        draft.seal(part, base.manifest.snapshot, base.manifest.corpus.clone(), graph)
    }

    /// Applies the records that commits have appended to the old log since.
    fn carry(&self, tail: &mut MergedTail, merged: &DeltaInfo, now: &Manifest) -> Result<(), IndexError> {
        let replaced = || IndexError::Replaced { dir: self.live.dir.clone() };
        let delta = now.delta.as_ref().ok_or_else(replaced)?;
        // Another base or another log: a build or a restore has replaced what was merged.
        if delta.base != merged.base || delta.log != merged.log {
            return Err(replaced());
        }
        let path = self.live.dir.join(&delta.log);
        let added = log::read_after(&path, tail.end, delta.bytes, now.embedder.dims)?;
        // A log that was fetched may have the same name and other records.
        let LogRecords { records, end } = added.ok_or_else(replaced)?;
        let current = self.live.current();
        let known = current.snapshot.graph.as_ref().filter(|_| !records.is_empty());
        // Made once for all records: it holds the facts of every commit since the base snapshot.
        let facts = known.map(Graph::added_facts).unwrap_or_default();
        for record in records {
            self.carry_record(tail, record, known, &facts)?;
        }
        tail.end = end;
        Ok(())
    }

    /// Applies a record. Takes the vectors of its texts from the graph `known` and from `facts`, which maps texts to
    /// vectors, and embeds only texts that neither has.
    fn carry_record(
        &self,
        tail: &mut MergedTail,
        record: DeltaRecord,
        known: Option<&Graph>,
        facts: &HashMap<String, &[f32]>,
    ) -> Result<(), IndexError> {
        let embed = self.live.embed.as_ref();
        let prompts = &tail.merged.embedder.prompts;
        let memory = EmbeddingCache::open(&self.live.dir, embed, prompts, false)?;
        let embedding = BatchEmbedder { embed, prompts, batch: self.options.batch, memory: &memory };
        let embed = |what, texts: &[String]| known_vectors(&embedding, known, facts, what, texts);
        let deriving = Deriving::Fresh { embed: &embed, threads: self.options.threads };
        let (state, derived) = change(&tail.store, tail.graph.as_ref(), &record, deriving)?;
        tail.store.delta = state.documents;
        tail.graph = state.graph;
        tail.records.push(DeltaRecord { derived, ..record });
        Ok(())
    }

    /// Moves the merged files to their place, writes the carried records, and publishes.
    fn publish(
        &self,
        writing: &LockedFolder,
        part: PartialSnapshot,
        tail: MergedTail,
        now: &Manifest,
    ) -> Result<(), IndexError> {
        let MergedTail { merged, records, .. } = tail;
        let number = writing.next_snapshot(Some(now.snapshot))?;
        let mut manifest = renumbered(merged, number);
        writing.rename_snapshot(part, number)?;
        if !records.is_empty() {
            // The folder has the first number, so the log and the snapshot have the next one.
            let snapshot = number.checked_add(1).ok_or_else(|| IndexError::Numbers { dir: self.live.dir.clone() })?;
            let log = delta_name(snapshot);
            let path = self.live.dir.join(&log);
            let mut end = LogPrefix::default();
            for record in &records {
                end = log::append(&path, end, record, now.embedder.dims)?;
            }
            let changes = records.iter().map(|record| (record.deleted.len() + record.upserted.len()) as u64).sum();
            manifest.delta = Some(DeltaInfo {
                base: number,
                passages: manifest.passages,
                graph: manifest.graph.take(),
                log,
                bytes: end.bytes,
                commits: records.len() as u64,
                changes,
            });
            manifest.snapshot = snapshot;
            manifest.passages = now.passages;
            manifest.graph.clone_from(&now.graph);
        }
        let manifest = manifest.seal();
        // Opened again under its final name, which error messages use, and ready for walks.
        let options = OpenOptions { verify: false, ..self.live.options.clone() };
        let snapshot = Snapshot::open(&self.live.dir, manifest.clone(), &options)?;
        if Manifest::read(&self.live.dir)? != *now {
            return Err(IndexError::Replaced { dir: self.live.dir.clone() });
        }
        writing.publish(&manifest, self.options.keep)?;
        self.live.published(snapshot);
        // The merged snapshot is published by now, so this is no failure of the merge.
        if let Err(error) = writing.sweep(Some(&manifest)) {
            tracing::warn!(%error, "cannot remove the merged snapshot");
        }
        Ok(())
    }
}

/// Gives a merged snapshot its number.
fn renumbered(merged: Manifest, number: u64) -> Manifest {
    let before = format!("{}/", snapshot_name(merged.snapshot));
    let within = |name: String| name.strip_prefix(&before).map(str::to_owned).unwrap_or(name);
    let name = |name| format!("{}/{}", snapshot_name(number), within(name));
    let files = merged.files.into_iter().map(|(file, sum)| (name(file), sum)).collect();
    Manifest { snapshot: number, files, ..merged }
}

/// Returns the vectors of texts. Embeds only those that neither the graph nor `facts` knows.
fn known_vectors(
    embedding: &BatchEmbedder<'_>,
    graph: Option<&Graph>,
    facts: &HashMap<String, &[f32]>,
    what: &'static str,
    texts: &[String],
) -> Result<Vec<Vec<f32>>, IndexError> {
    let mut known: HashMap<&str, Vec<f32>> = HashMap::new();
    if let Some(graph) = graph {
        for text in texts {
            let vector = if what == "facts" { facts.get(text.as_str()).copied() } else { graph.known_vector(text) };
            if let Some(vector) = vector {
                known.insert(text, vector.to_vec());
            }
        }
    }
    let missing: Vec<String> = texts.iter().filter(|text| !known.contains_key(text.as_str())).cloned().collect();
    let found = embedding.vectors(what, &missing)?;
    known.extend(missing.iter().map(String::as_str).zip(found));
    Ok(texts.iter().map(|text| known.get(text.as_str()).cloned().unwrap_or_default()).collect())
}

/// Limit on the bytes that a merge writes per second. Sleeps in the progress reports of the writers.
#[derive(Debug)]
struct Pace {
    started: Instant,
    before: u64,
    bytes_per_second: Option<u64>,
}

impl Pace {
    fn new(bytes_per_second: Option<u64>) -> Pace {
        Pace { started: Instant::now(), before: written(), bytes_per_second }
    }
}

impl BuildProgress for Pace {
    fn update(&self, _: BuildPhase, done: u64, _: Option<u64>) {
        // Reports come once per passage; looking at every hundredth suffices.
        let Some(limit) = self.bytes_per_second.filter(|_| done.is_multiple_of(100)) else { return };
        let due = Duration::from_secs_f64(written().saturating_sub(self.before) as f64 / limit.max(1) as f64);
        thread::sleep(due.saturating_sub(self.started.elapsed()).min(Duration::from_secs(1)));
    }
}

/// Returns the number of bytes that this thread has written. 0 where the system does not tell.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::corpus::fake::document;
    use crate::embed::fake::HashEmbed;
    use crate::folder::names;
    use crate::layout::MERGE;
    use crate::{BuildOptions, Changes, Corpus, build};

    #[test]
    fn a_merge_that_waits_for_another_process_delays_no_commit_and_writes_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("index");
        let corpus = Corpus::from_documents("test", vec![document("a")]);
        build(corpus, &HashEmbed::default(), &dir, &BuildOptions::default(), &()).unwrap();
        let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
        let options = CommitOptions { append_from: 0, ..CommitOptions::default() };
        let add = |id| live.commit(Changes::upsert([document(id)]), &options, &());
        add("b").unwrap();
        let other = LockedFolder::lock(&dir).unwrap();
        thread::scope(|scope| {
            let merging = scope.spawn(|| live.merge(&options, None));
            while !live.publishing.load(Ordering::SeqCst) && !merging.is_finished() {
                std::hint::spin_loop();
            }
            let started = Instant::now();
            assert!(matches!(add("c"), Err(IndexError::Locked { .. })));
            assert!(started.elapsed() < PATIENCE / 2, "the commit waited for {:?}", started.elapsed());
            assert!(!names(&dir).unwrap().iter().any(|name| name.starts_with(MERGE)));
            drop(other);
            assert!(merging.join().unwrap().unwrap());
        });
        assert!(live.current().manifest().delta.is_none());
    }
}
