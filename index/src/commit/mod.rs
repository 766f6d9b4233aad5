//! Changing an index: a new snapshot of what stays and what comes, published as a build is.
//!
//! Afterwards the index answers as one built from scratch of the resulting documents: those that stay and those that
//! were replaced in their places, the new ones at the end in the order given. (Where the vector search is not exact,
//! see [`OpenOptions::exact_below`], it may find other neighbours than a graph built anew would; and beyond 65,536 phrases
//! (`EXACT` in `graph/synonyms`) several threads look for synonyms approximately, so that two builds of the same documents
//! may differ in a few of them too.) Only texts that are new
//! are embedded; the rest is written anew from what the snapshot holds.

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
use crate::folder::LockedFolder;
use crate::graph::TripleOrigin;
use crate::index::check_embedder;
use crate::layout::snapshot_name;
use crate::manifest::{GraphInfo, Manifest};
use crate::openie::Builtin;
use crate::options::OpenOptions;
use crate::progress::BuildProgress;
use crate::snapshot::Snapshot;

pub use changes::Changes;
use plan::CommitPlan;

/// How changes are made.
#[derive(Debug, Clone)]
pub struct CommitOptions {
    /// Texts that are given to the embedder at once.
    pub batch: usize,
    /// Threads that join new vectors into a graph.
    pub threads: usize,
    /// Keep what is embedded in a journal until the snapshot is published, as
    /// [`BuildOptions::journal`](crate::BuildOptions::journal).
    pub journal: bool,
    /// What finds the triples of documents that bring none: best what the index was built with (see
    /// [`GraphInfo::extractor`](crate::GraphInfo::extractor)), which need not be given where [`Builtin`] is among it. What
    /// it found in documents that stay is kept, unless it reads the whole corpus, and then it is asked about all of them
    /// again; what others found is kept.
    pub extract: Option<Arc<dyn Extract>>,
    /// Ask nobody, and take documents without triples as they are: a graph search reaches them by their own similarity
    /// alone. Otherwise, where an extractor found the triples of the others and cannot be asked, they are refused.
    pub bare: bool,
}

impl Default for CommitOptions {
    fn default() -> CommitOptions {
        let crate::BuildOptions { batch, threads, journal, extract, .. } = crate::BuildOptions::default();
        CommitOptions { batch, threads, journal, extract, bare: false }
    }
}

/// What a commit did.
#[derive(Debug, Clone)]
pub struct CommitReport {
    /// The manifest of the index now.
    pub manifest: Manifest,
    /// Whether a new snapshot was published for them. It is not where the changes come to nothing.
    pub published: bool,
    /// Documents that were added.
    pub added: u64,
    /// Documents that took the place of another with their id.
    pub replaced: u64,
    /// Documents that were there already, the same in every field, and were left alone.
    pub unchanged: u64,
    /// Documents that were removed.
    pub removed: u64,
    /// Of the documents that were added or replaced another, those that are longer than the embedder reads: their vectors
    /// are those of their beginnings.
    pub cut: u64,
    /// Ids to be removed that were not there.
    pub absent: Vec<String>,
}

/// Makes `changes` to the index in `dir` and publishes the snapshot that comes of them.
///
/// # Errors
/// If there is no index, it is damaged, of another format or another embedder, another process is writing there, the
/// changes contradict themselves or would leave no document, the embedder fails, or the disk refuses. Whatever goes
/// wrong, the index stands as it was.
pub fn commit(
    dir: &Path,
    embed: &dyn Embed,
    changes: Changes,
    options: &CommitOptions,
    progress: &dyn BuildProgress,
) -> Result<CommitReport, IndexError> {
    // Not even a lock is left where there is no index.
    Manifest::read(dir)?;
    let writing = LockedFolder::begin(dir)?;
    let base = Snapshot::open_newest(dir, &OpenOptions::unwalked())?;
    // For one change there is one report.
    Committing { dir, embed, options, progress }.commit_together(&writing, &base, vec![changes])?.remove(0)
}

/// A commit under way.
pub(crate) struct Committing<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) embed: &'a dyn Embed,
    pub(crate) options: &'a CommitOptions,
    pub(crate) progress: &'a dyn BuildProgress,
}

impl Committing<'_> {
    /// Makes all of `changes` to `base`, which must have been verified, in one snapshot; refused if it is not what is
    /// published. What is wrong with one of them is told in its place, and the others are made without it.
    pub(crate) fn commit_together(
        &self,
        writing: &LockedFolder,
        base: &Snapshot,
        changes: Vec<Changes>,
    ) -> Result<Vec<Result<CommitReport, IndexError>>, IndexError> {
        self.check_base(base)?;
        check_embedder(self.dir, &base.manifest, self.embed)?;
        Changes::check_apart(&changes)?;
        let (mut whole, mut reports) = (CommitPlan::default(), Vec::with_capacity(changes.len()));
        for changes in changes {
            // All that can be told is told before anything is published: a bug on the way leaves the index as it was.
            reports.push(self.plan(base, &whole, changes).map(|plan| {
                let report = self.report(base.manifest.clone(), &plan);
                whole.join(plan);
                report
            }));
        }
        if whole.is_empty() {
            return Ok(reports);
        }
        let manifest = self.publish(writing, base, &whole)?;
        for report in reports.iter_mut().flatten() {
            report.manifest = manifest.clone();
        }
        Ok(reports)
    }

    /// What `changes` come to. Refused where nobody can say what one of their documents states, and where they leave none
    /// after what is `planned` before them.
    fn plan(&self, base: &Snapshot, planned: &CommitPlan, changes: Changes) -> Result<CommitPlan, IndexError> {
        let plan = CommitPlan::of(base, changes)?;
        self.extractor(base, &plan)?;
        if plan.empties(base, planned) {
            return Err(IndexError::Emptied { dir: self.dir.to_owned() });
        }
        Ok(plan)
    }

    /// What is told of `plan`, made in the snapshot of `manifest`.
    fn report(&self, manifest: Manifest, plan: &CommitPlan) -> CommitReport {
        CommitReport {
            manifest,
            published: !plan.is_empty(),
            added: plan.added(),
            replaced: plan.replaced,
            unchanged: plan.unchanged,
            removed: plan.removed,
            cut: plan.cut(self.embed),
            absent: plan.absent.clone(),
        }
    }

    fn publish(&self, writing: &LockedFolder, base: &Snapshot, plan: &CommitPlan) -> Result<Manifest, IndexError> {
        let extract = self.extractor(base, plan)?;
        let extract = extract.as_deref();
        let published = Some(base.manifest.snapshot);
        let snapshot = writing.next_snapshot(published)?;
        writing.sweep(published)?;
        let mut memory = EmbeddingCache::open(self.dir, self.embed, self.options.journal)?;
        base.remember(&mut memory)?;
        let CommitOptions { batch, threads, .. } = *self.options;
        let embedding = BatchEmbedder { embed: self.embed, batch, memory: &memory };
        let draft = SnapshotWriter { writing, embedding, threads, extract, progress: self.progress };
        let part = writing.create_part(snapshot)?;
        let (files, moved) = (self.dir.join(snapshot_name(base.manifest.snapshot)), plan.moved(base)?);
        let again = extract.and_then(|extract| again(base, extract));
        let goes_on = BaseSnapshot { snapshot: base, files: &files, moved: &moved, again };
        let graph = draft.write(&part, &mut plan.documents(base), Some(goes_on))?;
        self.check_base(base)?;
        draft.publish(part, snapshot, base.manifest.corpus.clone(), graph)
    }

    /// Refuses a base that is not what is published. A folder that was removed and made again under a commit, and so
    /// without regard to its lock, holds other files under the same names.
    fn check_base(&self, base: &Snapshot) -> Result<(), IndexError> {
        if Manifest::read(self.dir)? == base.manifest {
            return Ok(());
        }
        Err(IndexError::Replaced { dir: self.dir.to_owned() })
    }

    /// Who is asked for triples. Refuses documents without where nobody can say what they state, though somebody did
    /// for the others.
    fn extractor(&self, base: &Snapshot, plan: &CommitPlan) -> Result<Option<Arc<dyn Extract>>, IndexError> {
        let given = self.options.extract.clone();
        if given.is_some() || self.options.bare {
            return Ok(given);
        }
        let Some(graph) = &base.manifest.graph else { return Ok(None) };
        // Whoever else found triples here, this one can always be asked.
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

/// From where the triples are that `extract` is asked for again: its own, where they depend on the whole corpus. Those of
/// others stay, and so do its own where nothing tells them from those.
fn again(base: &Snapshot, extract: &dyn Extract) -> Option<TripleOrigin> {
    let id = extract.id();
    let own = TripleOrigin::of(&id);
    let alone = base.manifest.graph.as_ref().and_then(GraphInfo::extractor) == Some(id.as_str());
    (extract.reads_corpus() && (alone || own == TripleOrigin::Builtin)).then_some(own)
}
