//! Commits: change an index by publishing a new snapshot.
//!
//! A commit appends a record to the log of changes since the base snapshot (see [`crate::delta`]). Its cost grows with
//! the size of the change. A small index, or one with a large log, is written anew instead, as by a build. Only new
//! texts are embedded.
//!
//! Afterwards the index answers like one built from scratch over the resulting documents: kept and replaced documents
//! in their places, new ones at the end in the given order. Two approximations may differ: where the vector search is
//! not exact (see [`OpenOptions::exact_below`]), it may find other neighbors than a rebuilt graph; and beyond 65,536
//! phrases (`EXACT` in `graph/synonyms`) several threads search synonyms approximately, so even two builds of the same
//! documents may differ in a few synonyms.

mod append;
mod changes;
mod plan;

use std::path::Path;
use std::sync::Arc;

use crate::batch_embedder::BatchEmbedder;
use crate::build::{BaseSnapshot, SnapshotWriter};
use crate::embed::Embed;
use crate::embedding_cache::EmbeddingCache;
use crate::error::IndexError;
use crate::extract::Extract;
use crate::finished_changes::{self, FinishedChanges};
use crate::folder::LockedFolder;
use crate::graph::TripleOrigin;
use crate::index::check_embedder;
use crate::layout::snapshot_name;
use crate::manifest::{GraphInfo, Manifest, Verification};
use crate::openie::Builtin;
use crate::options::OpenOptions;
use crate::pending::PendingFile;
use crate::prepare::PreparedVectors;
use crate::progress::BuildProgress;
use crate::snapshot::Snapshot;

pub use changes::Changes;
use plan::CommitPlan;

/// Options for [`commit`].
#[derive(Debug, Clone)]
pub struct CommitOptions {
    /// Number of texts per call of the embedder.
    pub batch: usize,
    /// Number of threads that compare phrases, and that link new vectors into the nearest-neighbor graph.
    pub threads: usize,
    /// Keeps new vectors in a journal until the snapshot is published, as
    /// [`BuildOptions::journal`](crate::BuildOptions::journal).
    pub journal: bool,
    /// Extractor for documents that bring no triples, preferably the one that the index was built with (see
    /// [`GraphInfo::extractor`](crate::GraphInfo::extractor)). `None` suffices if that is [`Builtin`]. Triples that
    /// this extractor found earlier in unchanged documents are kept, unless it reads the whole corpus: then it runs
    /// over all of its documents again. Triples of other extractors are kept.
    pub extract: Option<Arc<dyn Extract>>,
    /// Runs no extractor, and accepts documents without triples; a graph search then reaches them only by their own
    /// similarity. If `false`, such documents are refused when an extractor supplied the triples of the others and is
    /// not available.
    pub bare: bool,
    /// Number of passages from which commits append their changes to a log. A smaller index is written anew by every
    /// commit, which takes a moment and keeps its folder simple.
    pub append_from: u64,
    /// Maximum size in bytes of the documents that a commit appends to the log. The index is written anew with larger
    /// changes, which a log of that size would soon need anyway.
    pub append_up_to: u64,
    /// Number of earlier snapshots to keep, which can be listed, searched and restored. Later commits with a smaller
    /// number remove surplus ones.
    pub keep: usize,
    /// Vectors of texts that were embedded before the commit.
    pub prepared: Vec<Arc<PreparedVectors>>,
}

impl Default for CommitOptions {
    fn default() -> CommitOptions {
        let crate::BuildOptions { batch, threads, journal, extract, .. } = crate::BuildOptions::default();
        CommitOptions {
            batch,
            threads,
            journal,
            extract,
            bare: false,
            append_from: 2048,
            append_up_to: append::MERGE_BYTES,
            keep: 0,
            prepared: Vec::new(),
        }
    }
}

/// Result of a commit.
#[derive(Debug, Clone)]
pub struct CommitReport {
    /// Manifest of the index after the commit.
    pub manifest: Manifest,
    /// If `true`, a new snapshot was published. `false` if the changes had no effect.
    pub published: bool,
    /// Number of documents added.
    pub added: u64,
    /// IDs of the first 100 of these documents.
    pub added_ids: Vec<String>,
    /// Number of documents that replaced another with the same ID.
    pub replaced: u64,
    /// Number of documents left alone because they are already present, the same in every field.
    pub unchanged: u64,
    /// Number of documents removed.
    pub removed: u64,
    /// Number of added or replacing documents longer than the embedder reads, whose vectors cover only their
    /// beginnings.
    pub cut: u64,
    /// IDs to remove that were not in the index.
    pub absent: Vec<String>,
}

/// Applies `changes` to the index in `dir` and publishes the resulting snapshot.
///
/// # Errors
/// If there is no index, it is damaged, or of another format or embedder; if another process is writing there; if the
/// changes contradict themselves or would leave no document; if the embedder or the disk fails. After any error the
/// index is unchanged.
pub fn commit(
    dir: &Path,
    embed: &dyn Embed,
    changes: Changes,
    options: &CommitOptions,
    progress: &dyn BuildProgress,
) -> Result<CommitReport, IndexError> {
    // Must not leave a lock file behind where there is no index.
    Manifest::read(dir)?;
    let mut writing = LockedFolder::lock(dir)?;
    // Opened under the lock, so nobody else can publish in between.
    let base = Snapshot::open_newest(dir, &OpenOptions::unwalked())?;
    // One change yields exactly one report.
    Committing { dir, embed, options, merges_elsewhere: false, progress }
        .commit_together(&mut writing, &base, vec![(changes, None)])?
        .reports
        .remove(0)
}

/// Result of several changes committed together.
pub(crate) struct CommittedChanges {
    /// One result per change.
    pub(crate) reports: Vec<Result<CommitReport, IndexError>>,
    /// Published snapshot. `None` if the index was written anew, or nothing changed.
    pub(crate) snapshot: Option<Snapshot>,
}

/// Commit in progress.
pub(crate) struct Committing<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) embed: &'a dyn Embed,
    pub(crate) options: &'a CommitOptions,
    /// If `true`, a background merge handles a large log. If `false`, the commit merges it.
    pub(crate) merges_elsewhere: bool,
    pub(crate) progress: &'a dyn BuildProgress,
}

impl Committing<'_> {
    /// Applies all `changes` to `base` in one snapshot, and returns one result per change. `base` must have been
    /// verified; fails if it is not the published snapshot. An invalid change gets an error of its own, and the others
    /// are applied without it. An accepted change is skipped if an earlier commit contains it, and gets an error if its
    /// file is gone otherwise.
    pub(crate) fn commit_together(
        &self,
        writing: &mut LockedFolder,
        base: &Snapshot,
        changes: Vec<(Changes, Option<PendingFile>)>,
    ) -> Result<CommittedChanges, IndexError> {
        self.check_base(base)?;
        check_embedder(self.dir, &base.manifest, self.embed)?;
        let (changes, files): (Vec<Changes>, Vec<Option<PendingFile>>) = changes.into_iter().unzip();
        Changes::check_apart(&changes)?;
        let finished = FinishedChanges::read(self.dir);
        let mut whole = CommitPlan::default();
        let mut reports = Vec::with_capacity(changes.len());
        let mut accepted = Vec::new();
        for (changes, file) in changes.into_iter().zip(files) {
            let is_finished = file.as_ref().is_some_and(|file| finished.contains(file));
            if let Some(file) = file.as_ref().filter(|file| !is_finished && file.is_gone()) {
                // Another process has committed the change, or failed to: made again, it could undo later ones.
                reports.push(Err(IndexError::Taken { id: file.id().to_owned() }));
                continue;
            }
            // Made again, the change would undo later ones.
            let changes = if is_finished { Changes::default() } else { changes };
            // All reports are made before anything is published: a bug in them leaves the index unchanged.
            let report = self.plan(base, &whole, changes).map(|plan| {
                let report = self.report(base.manifest.clone(), &plan);
                whole.join(plan);
                report
            });
            if report.is_ok() {
                accepted.extend(file);
            }
            reports.push(report);
        }
        let cut: u64 = reports.iter().flatten().map(|report| report.cut).sum();
        if cut > 0 {
            self.progress.truncated(cut);
        }
        if whole.is_empty() {
            // The changes are finished either way, and their files are removed next.
            if let Err(error) = finished_changes::finish(self.dir, &accepted) {
                tracing::warn!(%error, "cannot record that changes are finished");
            }
            return Ok(CommittedChanges { reports, snapshot: None });
        }
        writing.accepted = accepted;
        let snapshot = self.append(writing, base, &whole)?;
        let manifest = match &snapshot {
            Some(snapshot) => snapshot.manifest.clone(),
            None => self.publish(writing, base, &whole)?,
        };
        for report in reports.iter_mut().flatten() {
            report.manifest = manifest.clone();
        }
        Ok(CommittedChanges { reports, snapshot })
    }

    /// Plans `changes`. Refuses them if no extractor is available for one of their documents, or if they and the
    /// changes in `planned` would leave no document.
    fn plan(&self, base: &Snapshot, planned: &CommitPlan, changes: Changes) -> Result<CommitPlan, IndexError> {
        let plan = CommitPlan::of(base, changes)?;
        self.extractor(base, &plan)?;
        if plan.empties(base, planned) {
            return Err(IndexError::Emptied { dir: self.dir.to_owned() });
        }
        Ok(plan)
    }

    /// Builds the report of `plan`, published in the snapshot of `manifest`.
    fn report(&self, manifest: Manifest, plan: &CommitPlan) -> CommitReport {
        CommitReport {
            manifest,
            published: !plan.is_empty(),
            added: plan.added(),
            added_ids: plan.added_ids(),
            replaced: plan.replaced,
            unchanged: plan.unchanged,
            removed: plan.removed,
            cut: plan.cut(self.embed),
            absent: plan.absent.clone(),
        }
    }

    fn publish(&self, writing: &LockedFolder, base: &Snapshot, plan: &CommitPlan) -> Result<Manifest, IndexError> {
        // Refuses nothing here: each plan passed the same check on its own.
        let extract = self.extractor(base, plan)?;
        let extract = extract.as_deref();
        let snapshot = writing.next_snapshot(Some(base.manifest.snapshot))?;
        // Frees the space of killed builds before writing a new snapshot.
        writing.sweep(Some(&base.manifest))?;
        let prompts = &base.manifest.embedder.prompts;
        let mut memory = EmbeddingCache::open(self.dir, self.embed, prompts, self.options.journal)?;
        base.remember(&mut memory)?;
        self.options.prepared.iter().for_each(|prepared| prepared.publish(&mut memory));
        let CommitOptions { batch, threads, .. } = *self.options;
        let embedding = BatchEmbedder { embed: self.embed, prompts, batch, memory: &memory };
        let embedder_source = base.manifest.embedder.source_or_that_of(self.embed);
        let draft = SnapshotWriter { embedding, threads, extract, progress: self.progress, embedder_source };
        let part = writing.create_part(snapshot)?;
        let files = self.dir.join(snapshot_name(base.manifest.base()));
        let moved = plan.moved(base)?;
        let again = extract.and_then(|extract| again(base, extract));
        let goes_on = BaseSnapshot { snapshot: base, files: &files, moved: &moved, again };
        let graph = draft.write(&part, &mut plan.documents(base), Some(goes_on))?;
        // Writing took a while: another program may have replaced the folder meanwhile.
        self.check_base(base)?;
        // Verifies the files that were copied: damage in them must not get a fresh checksum.
        base.manifest.verify(self.dir, Verification::Checksums)?;
        draft.publish(writing, part, snapshot, base.manifest.corpus.clone(), graph, self.options.keep)
    }

    /// Refuses a base that is not the published snapshot or could not be read. A folder that was removed and created
    /// again during a commit, bypassing the lock, holds different files under the same names, and so does one that was
    /// repaired since the base was opened.
    fn check_base(&self, base: &Snapshot) -> Result<(), IndexError> {
        base.check_faults()?;
        if Manifest::read(self.dir)? == base.manifest && base.maps_files_in(self.dir) {
            return Ok(());
        }
        Err(IndexError::Replaced { dir: self.dir.to_owned() })
    }

    /// Selects the extractor. Refuses documents without triples if an extractor supplied those of the others but is not
    /// available now.
    fn extractor(&self, base: &Snapshot, plan: &CommitPlan) -> Result<Option<Arc<dyn Extract>>, IndexError> {
        let given = self.options.extract.clone();
        if given.is_some() || self.options.bare {
            return Ok(given);
        }
        let Some(graph) = &base.manifest.graph else { return Ok(None) };
        // The built-in extractor is always available, whichever others contributed.
        if graph.extractors().any(|name| name == Builtin.id()) {
            return Ok(Some(Arc::new(Builtin)));
        }
        let Some(source) = graph.extractor() else { return Ok(None) };
        match plan.unasked(base)? {
            Some(document) => Err(IndexError::NoTriples { id: document.id.clone(), extractor: source.to_owned() }),
            None => Ok(None),
        }
    }
}

/// Returns the origin of the triples that `extract` must produce again: its own, if they depend on the whole corpus.
/// Triples of other extractors stay, and so do its own if the index does not distinguish the two.
fn again(base: &Snapshot, extract: &dyn Extract) -> Option<TripleOrigin> {
    let id = extract.id();
    let own = TripleOrigin::of(&id);
    let alone = base.manifest.graph.as_ref().and_then(GraphInfo::extractor) == Some(id.as_str());
    (extract.reads_corpus() && (alone || own == TripleOrigin::Builtin)).then_some(own)
}
