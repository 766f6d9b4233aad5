//! Index that follows new snapshots while it is being searched.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use crate::commit::{Changes, CommitOptions, CommitReport, CommittedChanges, Committing};
use crate::delta::log;
use crate::embed::Embed;
use crate::error::IndexError;
use crate::filter::FactFilter;
use crate::folder::LockedFolder;
use crate::index::Index;
use crate::layout::MANIFEST;
use crate::manifest::Manifest;
use crate::options::OpenOptions;
use crate::pending::PendingFile;
use crate::progress::BuildProgress;
use crate::rerank::Rerank;
use crate::snapshot::Snapshot;

/// Longest interval between attempts to open a broken snapshot; each attempt may read all of its files.
const SELDOM: Duration = Duration::from_secs(10);

/// Newest known snapshot of an index, shared by searches and commits.
///
/// A search takes [`LiveIndex::current`] and keeps that snapshot for as long as it holds it. A commit, by this process
/// or another, replaces the snapshot for later searches. The files of the replaced snapshot are unlinked, but stay
/// readable wherever they are open.
pub struct LiveIndex {
    pub(crate) dir: PathBuf,
    pub(crate) embed: Arc<dyn Embed>,
    pub(crate) options: OpenOptions,
    filter: Option<Arc<dyn FactFilter>>,
    reranker: Option<Arc<dyn Rerank>>,
    current: RwLock<Arc<Index>>,
    /// Stamp of the manifest when it was last read. The lock is held while a snapshot is being replaced.
    seen: Mutex<Option<Stamp>>,
    /// Set if the published snapshot could not be opened at the last attempt.
    stale: AtomicBool,
    /// Set once a background thread merges large logs, so that commits need not.
    pub(crate) merging: AtomicBool,
    /// Set while a merge holds the lock of the folder or tries to take it.
    pub(crate) publishing: AtomicBool,
    /// Damage found in the files of the current snapshot.
    pub(crate) damage: Mutex<Option<String>>,
}

/// State of a [`LiveIndex`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveState {
    /// Number of the snapshot being searched.
    pub snapshot: u64,
    /// Number of passages in the snapshot.
    pub passages: u64,
    /// If `true`, the last attempt to open the published snapshot failed, or the manifest is unreadable.
    pub stale: bool,
    /// If `true`, a file of the snapshot is damaged; see [`LiveIndex::damage`].
    pub damaged: bool,
}

/// Identity of a manifest file, without reading it. Every manifest is a new file, renamed into place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    #[cfg(unix)]
    inode: u64,
}

impl fmt::Debug for LiveIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveIndex").field("current", &self.current()).finish_non_exhaustive()
    }
}

impl LiveIndex {
    /// Opens the index in `dir`.
    ///
    /// # Errors
    /// The errors of [`Index::open`].
    pub fn open(dir: &Path, embed: Arc<dyn Embed>, options: OpenOptions) -> Result<LiveIndex, IndexError> {
        // Taken before the index is opened, so that a commit in between is noticed by the first refresh.
        let seen = Mutex::new(Stamp::of(dir));
        let index = Index::open_with(dir, Arc::clone(&embed), &options)?;
        let current = RwLock::new(Arc::new(index));
        let stale = AtomicBool::new(false);
        Ok(LiveIndex {
            dir: dir.to_owned(),
            embed,
            options,
            filter: None,
            reranker: None,
            current,
            seen,
            stale,
            merging: AtomicBool::new(false),
            publishing: AtomicBool::new(false),
            damage: Mutex::new(None),
        })
    }

    /// Makes every snapshot follow only those facts that `filter` keeps.
    #[must_use]
    pub fn with_fact_filter(mut self, filter: Arc<dyn FactFilter>) -> LiveIndex {
        let current = self.current.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Right after opening nobody else holds the snapshot; if somebody does, the filter starts with the next
        // snapshot.
        if let Some(index) = Arc::get_mut(current) {
            index.filter = Some(Arc::clone(&filter));
        }
        self.filter = Some(filter);
        self
    }

    /// Lets the searches of every snapshot rerank their candidates by `reranker`.
    #[must_use]
    pub fn with_reranker(mut self, reranker: Arc<dyn Rerank>) -> LiveIndex {
        let current = self.current.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = Arc::get_mut(current) {
            index.reranker = Some(Arc::clone(&reranker));
        }
        self.reranker = Some(reranker);
        self
    }

    /// Folder of the index.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the snapshot to search now.
    pub fn current(&self) -> Arc<Index> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the state of the index. [`LiveState::stale`] is as of the last [`LiveIndex::refresh`],
    /// [`LiveIndex::watch`] or [`LiveIndex::commit`].
    pub fn state(&self) -> LiveState {
        let Manifest { snapshot, passages, .. } = *self.current().manifest();
        let damaged = self.damage().is_some();
        LiveState { snapshot, passages, stale: self.stale.load(Ordering::Relaxed), damaged }
    }

    /// Opens a snapshot that another process has published since the last call, and returns whether there was one.
    /// Without a new snapshot this costs one `stat`.
    ///
    /// # Errors
    /// If the new snapshot cannot be opened. The old one stays, and the next call tries again.
    pub fn refresh(&self) -> Result<bool, IndexError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(&self.dir);
        if stamp == *seen {
            // A snapshot that could not be opened may have been withdrawn.
            self.stale.store(false, Ordering::Relaxed);
            return Ok(false);
        }
        self.follow(&mut seen, stamp)
    }

    /// Opens the published snapshot, unless it is being searched already, with the files in the folder. Snapshot
    /// numbers do not suffice to tell: a rebuilt index starts at 1 again.
    fn follow(&self, seen: &mut Option<Stamp>, stamp: Option<Stamp>) -> Result<bool, IndexError> {
        let followed = self.open_published();
        self.stale.store(followed.is_err(), Ordering::Relaxed);
        if followed.is_ok() {
            *seen = stamp;
        }
        followed
    }

    fn open_published(&self) -> Result<bool, IndexError> {
        let current = self.current();
        // After a repair the manifest is the same, and the files that are mapped are still the damaged ones.
        let newer = Manifest::read(&self.dir)? != *current.manifest() || !current.snapshot.maps_files_in(&self.dir);
        if newer {
            self.replace(&self.options)?;
        }
        Ok(newer)
    }

    /// Starts a thread that calls [`LiveIndex::refresh`] every `interval` and ends with the index. Logs a failure once,
    /// and retries at growing intervals.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn watch(self: &Arc<Self>, interval: Duration) -> std::io::Result<()> {
        let watched = Arc::downgrade(self);
        let look = move || {
            // The last logged error: the same failure is not logged at every attempt.
            let mut told = None;
            let mut wait = interval;
            loop {
                std::thread::sleep(wait);
                let Some(live) = watched.upgrade() else { break };
                let looked = live.refresh();
                wait = if looked.is_ok() { interval } else { wait.saturating_mul(2).min(SELDOM.max(interval)) };
                match looked {
                    Ok(true) => {
                        tracing::info!(snapshot = live.current().manifest().snapshot, "searching a new snapshot")
                    }
                    Ok(false) => told = None,
                    Err(error) => {
                        let message = error.to_string();
                        if told.as_ref() != Some(&message) {
                            tracing::warn!(%error, "cannot open the new snapshot: still searching the previous one");
                            told = Some(message);
                        }
                    }
                }
            }
        };
        std::thread::Builder::new().name("index-watch".to_owned()).spawn(look).map(drop)
    }

    /// Applies `changes`, and searches the result from now on. Searches continue meanwhile. If the published snapshot
    /// cannot be opened, the failure is logged and [`LiveIndex::refresh`] retries.
    ///
    /// # Errors
    /// The errors of [`commit`](crate::commit()). While another commit is running, in this process or another, returns
    /// [`IndexError::Locked`].
    pub fn commit(
        &self,
        changes: Changes,
        options: &CommitOptions,
        progress: &dyn BuildProgress,
    ) -> Result<CommitReport, IndexError> {
        // One change yields exactly one report.
        self.commit_together(vec![changes], options, progress)?.remove(0)
    }

    /// Applies several changes to different documents in one snapshot, as if [`LiveIndex::commit`] were called for
    /// each, and returns one result per change. An invalid change gets an error of its own, and the others are applied
    /// without it. Only the check for missing triples (see [`CommitOptions::extract`]) judges each change by the
    /// documents present before all of them.
    ///
    /// # Errors
    /// The errors of [`LiveIndex::commit`], and if two changes concern the same document, or one of several removes
    /// documents that it does not name. No change is applied then.
    pub fn commit_together(
        &self,
        changes: Vec<Changes>,
        options: &CommitOptions,
        progress: &dyn BuildProgress,
    ) -> Result<Vec<Result<CommitReport, IndexError>>, IndexError> {
        let changes = changes.into_iter().map(|changes| (changes, None)).collect();
        self.commit_accepted(changes, options, progress)
    }

    /// Applies several changes as [`LiveIndex::commit_together`]. A change that was accepted earlier comes with its
    /// file, and is applied once: if a process was killed after it had committed the change and before it removed the
    /// file, the change is skipped, and its result says that nothing was changed. A change whose file is gone without a
    /// record of its commit gets an error, since another process has taken it.
    ///
    /// # Errors
    /// The errors of [`LiveIndex::commit_together`].
    pub fn commit_accepted(
        &self,
        changes: Vec<(Changes, Option<PendingFile>)>,
        options: &CommitOptions,
        progress: &dyn BuildProgress,
    ) -> Result<Vec<Result<CommitReport, IndexError>>, IndexError> {
        // Must not leave a lock file behind where there is no index any more.
        Manifest::read(&self.dir)?;
        let mut writing = self.lock_folder()?;
        // Another process may have committed since the last look.
        self.catch_up()?;
        let base = self.current();
        let embed = self.embed.as_ref();
        let merges_elsewhere = self.merging.load(Ordering::Relaxed);
        let committing = Committing { dir: &self.dir, embed, options, merges_elsewhere, progress };
        let CommittedChanges { reports, snapshot } =
            committing.commit_together(&mut writing, &base.snapshot, changes)?;
        let opened = if let Some(snapshot) = snapshot {
            // Taken under the lock: afterwards the manifest may be that of another commit.
            let stamp = Stamp::of(&self.dir);
            // Walks take longer to prepare than a small commit, so they are prepared without the lock, and before any
            // search gets the snapshot.
            drop(writing);
            snapshot.prepare_walk();
            self.install_unless_followed(&base, snapshot, stamp)
        } else if reports.iter().flatten().any(|report| report.published) {
            // No verification: the files were checked a moment ago, under the lock that is still held.
            let options = OpenOptions { verify: false, ..self.options.clone() };
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let stamp = Stamp::of(&self.dir);
            let replaced = self.replace(&options);
            self.stale.store(replaced.is_err(), Ordering::Relaxed);
            replaced.inspect(|()| *seen = stamp)
        } else {
            Ok(())
        };
        // The snapshot stays published even if it cannot be opened here; the next refresh retries.
        if let Err(error) = opened {
            tracing::warn!(%error, "cannot open the published snapshot: still searching the previous one");
        }
        Ok(reports)
    }

    /// Makes the published snapshot the current one. Always reads the manifest, for callers that build on the files
    /// that it names.
    pub(crate) fn catch_up(&self) -> Result<(), IndexError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(&self.dir);
        self.follow(&mut seen, stamp).map(drop)
    }

    /// Makes a snapshot that this process has published the current one.
    pub(crate) fn published(&self, snapshot: Snapshot) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(&self.dir);
        self.install(snapshot);
        self.stale.store(false, Ordering::Relaxed);
        *seen = stamp;
    }

    /// Makes the snapshot of a commit on `base` the current one. `stamp` is the stamp of the commit's manifest. If
    /// another thread has opened a published snapshot since, that one stays and is brought up to date: it may contain
    /// later commits as well, or have repaired files.
    fn install_unless_followed(
        &self,
        base: &Arc<Index>,
        snapshot: Snapshot,
        stamp: Option<Stamp>,
    ) -> Result<(), IndexError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&self.current(), base) {
            drop(seen);
            return self.catch_up();
        }
        self.install(snapshot);
        self.stale.store(false, Ordering::Relaxed);
        *seen = stamp;
        Ok(())
    }

    /// Locks the folder. Waits for a merge of this process that is just publishing, which takes a moment.
    fn lock_folder(&self) -> Result<LockedFolder, IndexError> {
        loop {
            let publishing = self.publishing.load(Ordering::SeqCst);
            let locked = LockedFolder::lock(&self.dir);
            // Read again, because the merge may have begun to publish in between.
            let publishing = publishing || self.publishing.load(Ordering::SeqCst);
            match locked {
                Err(IndexError::Locked { .. }) if publishing => std::thread::sleep(Duration::from_millis(2)),
                other => return other,
            }
        }
    }

    /// Opens the published snapshot and makes it the current one.
    fn replace(&self, options: &OpenOptions) -> Result<(), IndexError> {
        match self.advanced() {
            Ok(Some(snapshot)) => {
                self.install(snapshot);
                return Ok(());
            }
            Ok(None) => {}
            // Files that are opened from the start either are intact, or fail with the error that matters.
            Err(error) => tracing::debug!(%error, "cannot continue from the current snapshot: opening all files"),
        }
        let index = Index::open_with(&self.dir, Arc::clone(&self.embed), options)?;
        self.install(index.snapshot);
        Ok(())
    }

    /// Opens the files of the published snapshot again, and searches them from now on.
    pub(crate) fn reopen(&self) -> Result<(), IndexError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(&self.dir);
        let index = Index::open_with(&self.dir, Arc::clone(&self.embed), &self.options)?;
        self.install(index.snapshot);
        *seen = stamp;
        Ok(())
    }

    /// Returns the published snapshot, if only commits lie between it and the current one. `None` as well if the log
    /// does not begin with the records of the current snapshot: another writer's log may have the same name.
    fn advanced(&self) -> Result<Option<Snapshot>, IndexError> {
        let manifest = Manifest::read(&self.dir)?;
        let current = self.current();
        let before = current.manifest();
        let end = |manifest: &Manifest| manifest.delta.as_ref().map_or(0, |delta| delta.bytes);
        let same = manifest.keeps_files_of(before)
            && manifest.embedder == before.embedder
            && end(&manifest) > end(before)
            && current.snapshot.maps_files_in(&self.dir);
        let Some(delta) = manifest.delta.as_ref().filter(|_| same) else { return Ok(None) };
        let path = self.dir.join(&delta.log);
        let held = current.snapshot.log;
        let added = log::read_after(&path, held, end(&manifest), manifest.embedder.dims)?;
        added.map(|added| current.snapshot.replayed(&self.dir, manifest, &added)).transpose()
    }

    /// Makes a snapshot the current one, without the damage of files that it does not need.
    fn install(&self, snapshot: Snapshot) {
        let index = Index::of(&self.dir, snapshot, Arc::clone(&self.embed), self.filter.clone(), self.reranker.clone());
        let index = Arc::new(index);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, Arc::clone(&index));
        drop(current);
        // After the replacement, so that no scrub of the old snapshot remembers its damage again.
        if !index.manifest().keeps_files_of(old.manifest()) {
            *self.damage.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        // Dropped outside the lock, so that unmapping the old snapshot delays no search.
        drop(old);
    }
}

impl Stamp {
    fn of(dir: &Path) -> Option<Stamp> {
        let about = std::fs::metadata(dir.join(MANIFEST)).ok()?;
        Some(Stamp {
            modified: about.modified().ok(),
            bytes: about.len(),
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(&about),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::corpus::fake::document;
    use crate::embed::fake::HashEmbed;
    use crate::{BuildOptions, Corpus, build, commit};

    #[test]
    fn a_commit_does_not_replace_a_snapshot_that_contains_it() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("index");
        let corpus = Corpus::from_documents("test", vec![document("a")]);
        build(corpus, &HashEmbed::default(), &dir, &BuildOptions::default(), &()).unwrap();
        let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
        let appending = CommitOptions { append_from: 0, ..CommitOptions::default() };
        let add = |id| live.commit(Changes::upsert([document(id)]), &appending, &()).unwrap();
        let base = live.current();
        add("b");
        let snapshot = Snapshot::open_newest(&dir, &live.options).unwrap();
        let stamp = Stamp::of(&dir);
        add("c");
        live.install_unless_followed(&base, snapshot, stamp).unwrap();
        assert_eq!(live.current().manifest().passages, 3);
        assert!(!live.refresh().unwrap());
    }

    #[test]
    fn a_commit_does_not_replace_files_that_were_opened_again() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("index");
        let corpus = Corpus::from_documents("test", vec![document("a")]);
        build(corpus, &HashEmbed::default(), &dir, &BuildOptions::default(), &()).unwrap();
        let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
        let base = live.current();
        live.reopen().unwrap();
        let reopened = live.current();
        let appending = CommitOptions { append_from: 0, ..CommitOptions::default() };
        commit(&dir, &HashEmbed::default(), Changes::upsert([document("b")]), &appending, &()).unwrap();
        let snapshot = Snapshot::open_newest(&dir, &live.options).unwrap();
        live.install_unless_followed(&base, snapshot, Stamp::of(&dir)).unwrap();
        let current = live.current();
        assert_eq!(current.manifest().passages, 2);
        assert!(Arc::ptr_eq(&current.snapshot.store.base, &reopened.snapshot.store.base));
        assert!(!live.refresh().unwrap());
    }
}
