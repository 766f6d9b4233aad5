//! An index that changes while it is searched.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use crate::commit::{Changes, CommitOptions, CommitReport, Committing};
use crate::embed::Embed;
use crate::error::IndexError;
use crate::filter::FactFilter;
use crate::folder::LockedFolder;
use crate::index::Index;
use crate::layout::MANIFEST;
use crate::manifest::Manifest;
use crate::options::OpenOptions;
use crate::progress::BuildProgress;

/// The longest wait between two looks at a snapshot that cannot be opened, each of which may read all of it.
const SELDOM: Duration = Duration::from_secs(10);

/// The newest snapshot of an index, as far as it is known here.
///
/// Whoever searches takes [`LiveIndex::current`] and keeps that snapshot for as long as it holds it. A commit, by this
/// process or another one, puts the next one in its place for those who come after. The files of a snapshot that was
/// replaced are unlinked, which takes them from nobody who has them open.
pub struct LiveIndex {
    dir: PathBuf,
    embed: Arc<dyn Embed>,
    options: OpenOptions,
    filter: Option<Arc<dyn FactFilter>>,
    current: RwLock<Arc<Index>>,
    /// What the manifest looked like when it was last read; held while a snapshot is being put in place.
    seen: Mutex<Option<Stamp>>,
    /// Whether what was published could not be opened when it was last looked at.
    stale: AtomicBool,
}

/// What is known of the index that is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveState {
    /// The number of the snapshot that is searched.
    pub snapshot: u64,
    /// How many passages it has.
    pub passages: u64,
    /// Whether something else is published that could not be opened at the last look, or nothing that can be read.
    pub stale: bool,
}

/// What tells one manifest from the next without reading it. Each is a new file, renamed into place.
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
    /// As [`Index::open`].
    pub fn open(dir: &Path, embed: Arc<dyn Embed>, options: OpenOptions) -> Result<LiveIndex, IndexError> {
        // Taken before the index is opened: a commit in between is seen at the first look.
        let seen = Mutex::new(Stamp::of(dir));
        let index = Index::open_with(dir, Arc::clone(&embed), &options)?;
        let current = RwLock::new(Arc::new(index));
        let stale = AtomicBool::new(false);
        Ok(LiveIndex { dir: dir.to_owned(), embed, options, filter: None, current, seen, stale })
    }

    /// The same index, of which every snapshot follows only those facts that `filter` keeps.
    #[must_use]
    pub fn with_fact_filter(mut self, filter: Arc<dyn FactFilter>) -> LiveIndex {
        let current = self.current.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nobody else can hold what was opened for this value alone; if somebody does, the next snapshot is filtered.
        if let Some(index) = Arc::get_mut(current) {
            index.filter = Some(Arc::clone(&filter));
        }
        self.filter = Some(filter);
        self
    }

    /// The snapshot to search now.
    pub fn current(&self) -> Arc<Index> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is searched now, and whether it is what is published, as far as [`LiveIndex::refresh`], which
    /// [`LiveIndex::watch`] calls, and [`LiveIndex::commit`] have seen.
    pub fn state(&self) -> LiveState {
        let Manifest { snapshot, passages, .. } = *self.current().manifest();
        LiveState { snapshot, passages, stale: self.stale.load(Ordering::Relaxed) }
    }

    /// Looks whether another process has published a snapshot, or put another index in the folder, and opens that;
    /// gives whether there was one. A look that finds nothing new costs one `stat`.
    ///
    /// # Errors
    /// If the new snapshot cannot be opened. The one before stays, and the next look tries again.
    pub fn refresh(&self) -> Result<bool, IndexError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(&self.dir);
        if stamp == *seen {
            // What could not be opened may have been taken back.
            self.stale.store(false, Ordering::Relaxed);
            return Ok(false);
        }
        self.follow(&mut seen, stamp)
    }

    /// Opens what is published unless it is what is searched. Numbers alone do not tell: an index that was built anew
    /// in the same place begins at 1 again.
    fn follow(&self, seen: &mut Option<Stamp>, stamp: Option<Stamp>) -> Result<bool, IndexError> {
        let followed = self.open_published();
        self.stale.store(followed.is_err(), Ordering::Relaxed);
        if followed.is_ok() {
            *seen = stamp;
        }
        followed
    }

    fn open_published(&self) -> Result<bool, IndexError> {
        let newer = Manifest::read(&self.dir)? != *self.current().manifest();
        if newer {
            self.replace(&self.options)?;
        }
        Ok(newer)
    }

    /// Looks for new snapshots every `interval`, on a thread of its own that ends with the index. What cannot be opened
    /// is told to the log, once, and looked at less and less often.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn watch(self: &Arc<Self>, interval: Duration) -> std::io::Result<()> {
        let watched = Arc::downgrade(self);
        let look = move || {
            let (mut told, mut wait) = (None, interval);
            loop {
                std::thread::sleep(wait);
                let Some(live) = watched.upgrade() else { break };
                let looked = live.refresh();
                wait = if looked.is_ok() { interval } else { wait.saturating_mul(2).min(SELDOM.max(interval)) };
                match looked {
                    Ok(true) => {
                        tracing::info!(snapshot = live.current().manifest().snapshot, "a new snapshot is searched")
                    }
                    Ok(false) => told = None,
                    Err(error) => {
                        let message = error.to_string();
                        if told.as_ref() != Some(&message) {
                            tracing::warn!(%error, "the new snapshot cannot be opened: the one before is searched");
                            told = Some(message);
                        }
                    }
                }
            }
        };
        std::thread::Builder::new().name("index-watch".to_owned()).spawn(look).map(drop)
    }

    /// Makes `changes` and searches what comes of them from now on. Searches go on meanwhile. A snapshot that was
    /// published but cannot be opened again is told to the log, and [`LiveIndex::refresh`] tries once more.
    ///
    /// # Errors
    /// As [`commit`](crate::commit()). Whoever commits while another commit is under way, in this process or another, is
    /// refused with [`IndexError::Locked`].
    pub fn commit(
        &self,
        changes: Changes,
        options: &CommitOptions,
        progress: &dyn BuildProgress,
    ) -> Result<CommitReport, IndexError> {
        // For one change there is one report.
        self.commit_together(vec![changes], options, progress)?.remove(0)
    }

    /// Makes all of `changes`, which are about different documents, in one snapshot, as [`LiveIndex::commit`] makes one
    /// after the other, and gives what each of them did. What is wrong with one alone is told in its place, and the
    /// others are made without it. Only whether anybody can say what a document states (see [`CommitOptions::extract`]) is
    /// judged for each by the documents that were there before all of them.
    ///
    /// # Errors
    /// As [`LiveIndex::commit`], and if two of them are about the same document, or one of several removes documents that
    /// it does not name. Then none is made.
    pub fn commit_together(
        &self,
        changes: Vec<Changes>,
        options: &CommitOptions,
        progress: &dyn BuildProgress,
    ) -> Result<Vec<Result<CommitReport, IndexError>>, IndexError> {
        // Not even a lock is left where there is no index any more.
        Manifest::read(&self.dir)?;
        let writing = LockedFolder::begin(&self.dir)?;
        // Another process may have been here since the last look. The manifest is read, whatever it looks like: the new
        // snapshot is made of the files that it names.
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let stamp = Stamp::of(&self.dir);
            self.follow(&mut seen, stamp)?;
        }
        let base = self.current();
        let committing = Committing { dir: &self.dir, embed: self.embed.as_ref(), options, progress };
        let reports = committing.commit_together(&writing, &base.snapshot, changes)?;
        if reports.iter().flatten().any(|report| report.published) {
            // It was read through and summed up a moment ago, under the lock that is still held.
            let options = OpenOptions { verify: false, ..self.options.clone() };
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let stamp = Stamp::of(&self.dir);
            // What is published stays so even where it cannot be opened here; the next look tries again.
            let replaced = self.replace(&options);
            self.stale.store(replaced.is_err(), Ordering::Relaxed);
            match replaced {
                Ok(()) => *seen = stamp,
                Err(error) => {
                    tracing::warn!(%error, "the snapshot was published but cannot be opened: the one before is searched");
                }
            }
        }
        Ok(reports)
    }

    /// Puts the published snapshot in the place of the current one.
    fn replace(&self, options: &OpenOptions) -> Result<(), IndexError> {
        let mut index = Index::open_with(&self.dir, Arc::clone(&self.embed), options)?;
        index.filter.clone_from(&self.filter);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, Arc::new(index));
        drop(current);
        // Unmapping the old one, if nobody searches it any more, keeps nobody waiting.
        drop(old);
        Ok(())
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
