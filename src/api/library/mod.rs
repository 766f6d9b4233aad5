//! Documents of the served index, and the queue of changes to them.
//!
//! One commit runs at a time. Changes that arrive meanwhile wait, and waiting changes of different documents go into
//! the next commit together, small ones first, up to a total size. The texts of a large change are embedded before its
//! turn, while others commit. Changes of the same document keep their order.

mod committer;
mod queue;

use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, watch};
use waymark_index::{Changes, CommitOptions, LiveIndex, PendingChange, PendingChanges, PendingFile};

pub(super) use self::committer::shortened;

use self::committer::{CommitPass, Committer, bug, refusal};
use self::queue::{ChangeQueue, SLICE, size};
use super::auth::Caller;
use super::commit_meter::{CommitMeter, CommitStep};
use super::commit_response::CommitResponse;
use super::drain::{self, Drain};
use super::error::{ApiError, Code};
use super::fair_slots::{FairSlot, FairSlots};
use super::metrics::IndexMetrics;

/// Maximum number of changes waiting for the running commit; further ones are refused.
const MAX_WAITING: usize = 64;

/// Turn to commit.
#[derive(Debug, Default)]
pub(crate) struct CommitTurn {
    /// If `true`, a task waits for another process that is writing to the index. It commits what is queued meanwhile.
    awaits_process: bool,
}

/// Time between attempts to commit accepted changes while another process is writing to the index.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// Documents of the served index.
#[derive(Debug)]
pub struct Library {
    /// Served index.
    pub live: Arc<LiveIndex>,
    /// Options of commits. `None` makes the index read-only.
    options: Option<CommitOptions>,
    /// Held by the running commit.
    turn: Arc<tokio::sync::Mutex<CommitTurn>>,
    queue: ChangeQueue,
    slots: FairSlots,
    meter: CommitMeter,
    /// Accepted changes that survive the end of the process. `None` if their folder cannot be read, or the index is
    /// read-only.
    pending: Option<Arc<PendingChanges>>,
    /// Changes that an earlier process accepted, until they are resumed.
    left: Mutex<Vec<(PendingFile, PendingChange)>>,
    /// If `true`, the index is being removed and takes no more changes. Locked while a change is accepted or queued.
    closed: RwLock<bool>,
}

/// Progress of a change.
#[derive(Debug, Clone)]
pub(crate) enum ChangeProgress {
    /// Waiting for the running commit.
    Queued,
    /// Being committed.
    Running,
    /// Finished, successfully or not.
    Finished(Result<CommitResponse, ApiError>),
}

/// Handle to follow a change. The change is committed even if all its handles are dropped, except that a large change
/// is given up while it is prepared.
#[derive(Debug, Clone)]
pub(crate) struct ChangeTicket {
    progress: watch::Receiver<ChangeProgress>,
    /// Since one commit runs at a time, its step is that of every running change.
    meter: CommitMeter,
    /// Alive as long as a client waits for the change.
    _interest: Option<Arc<()>>,
}

/// Change to queue.
#[derive(Debug)]
pub(crate) struct SubmittedChange {
    changes: Changes,
    /// File to remove when the change is finished. `None` if the client waits for the change itself, and gives it up by
    /// leaving.
    accepted: Option<AcceptedChange>,
}

/// Change that was acknowledged before its commit.
#[derive(Debug, Clone)]
struct AcceptedChange {
    pending: Arc<PendingChanges>,
    file: PendingFile,
}

impl Library {
    /// Creates a library that can be changed.
    pub fn new(live: Arc<LiveIndex>, options: CommitOptions) -> Library {
        let (pending, left) = match PendingChanges::open(live.dir()) {
            Ok((pending, left)) => (Some(Arc::new(pending)), left),
            Err(error) => {
                tracing::error!(%error, "cannot read accepted changes: no change can be accepted before its commit");
                (None, Vec::new())
            }
        };
        Library { options: Some(options), pending, left: Mutex::new(left), ..Library::read_only(live) }
    }

    /// Creates a read-only library. It leaves accepted changes to the processes that may make them.
    pub fn read_only(live: Arc<LiveIndex>) -> Library {
        Library {
            live,
            options: None,
            turn: Arc::default(),
            queue: ChangeQueue::default(),
            // One change beyond the waiting ones is being committed.
            slots: FairSlots::new(1 + MAX_WAITING, "unfinished changes of documents"),
            meter: CommitMeter::default(),
            pending: None,
            left: Mutex::default(),
            closed: RwLock::default(),
        }
    }

    /// Returns `true` if documents can be changed.
    pub(crate) fn writable(&self) -> bool {
        self.options.is_some()
    }

    /// Queues `changes` on behalf of `caller`. They are committed after earlier changes of the same documents, counted
    /// in `metrics`, and `drain` waits for them.
    ///
    /// # Errors
    /// 400 for changes that contradict each other or if the index was removed, 403 if the index is read-only, 429 if
    /// the caller has its maximum number of unfinished changes, 503 if the queue is full. [`ChangeTicket::finished`]
    /// lists errors of the commit itself.
    pub(crate) fn submit(
        &self,
        change: SubmittedChange,
        caller: &Caller,
        metrics: &IndexMetrics,
        drain: &Drain,
    ) -> Result<ChangeTicket, ApiError> {
        let SubmittedChange { changes, accepted } = change;
        let options = self.options.clone().ok_or_else(read_only)?;
        let checked = self.keep_open().and_then(|open| {
            changes.check().map_err(|error| refusal(&error))?;
            Ok((open, self.slots.take(caller)?))
        });
        // The guard is held until the change is queued.
        let (_open, slot) = checked.inspect_err(|_| {
            // Refused after all, so it must not be resumed.
            if let Some(AcceptedChange { pending, file }) = &accepted {
                pending.remove(file);
            }
        })?;
        Ok(self.enqueue(changes, accepted, Some(slot), self.committer(options, metrics), drain))
    }

    /// Queues a change that the server itself makes on behalf of an earlier request. It takes no slot of any caller.
    ///
    /// # Errors
    /// 400 for changes that contradict each other or if the index was removed, 403 if the index is read-only.
    pub(crate) fn apply(
        &self,
        changes: Changes,
        metrics: &IndexMetrics,
        drain: &Drain,
    ) -> Result<ChangeTicket, ApiError> {
        let options = self.options.clone().ok_or_else(read_only)?;
        changes.check().map_err(|error| refusal(&error))?;
        let _open = self.keep_open()?;
        Ok(self.enqueue(changes, None, None, self.committer(options, metrics), drain))
    }

    /// Refuses further changes from now on, so the index can be removed. Returns `false`, and refuses none, if a
    /// change was accepted or is queued. Call it while commits are held back.
    pub(crate) fn close(&self) -> bool {
        let mut closed = self.closed.write().unwrap_or_else(PoisonError::into_inner);
        // Includes the changes that this process has left to the next one.
        let accepted = PendingChanges::open(self.live.dir()).map(|(_, accepted)| accepted);
        let is_idle = self.queue.is_empty() && accepted.is_ok_and(|accepted| accepted.is_empty());
        *closed = is_idle;
        is_idle
    }

    /// Keeps [`close`](Self::close) waiting until the guard is dropped.
    ///
    /// # Errors
    /// 400 if the library is closed.
    fn keep_open(&self) -> Result<RwLockReadGuard<'_, bool>, ApiError> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            let message = "the vector store has no documents any more: its index was removed with its last file";
            return Err(ApiError::invalid("index", message));
        }
        Ok(closed)
    }

    fn committer(&self, options: CommitOptions, metrics: &IndexMetrics) -> Committer {
        let live = Arc::clone(&self.live);
        Committer { live, options, metrics: metrics.clone(), meter: self.meter.clone() }
    }

    /// Waits for the running commit, and holds back others until the guard is dropped.
    pub(crate) async fn hold_commits(&self) -> OwnedMutexGuard<CommitTurn> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Number of earlier snapshots to keep.
    ///
    /// # Errors
    /// 403 if the index is read-only.
    pub(crate) fn keep(&self) -> Result<usize, ApiError> {
        let options = self.options.as_ref();
        options.map(|options| options.keep).ok_or_else(read_only)
    }

    /// Makes a change durable before its commit, so it may be acknowledged.
    ///
    /// # Errors
    /// 400 and 403 as [`Library::submit`], and 500 if the change cannot be written.
    pub(crate) fn accept(&self, change: PendingChange) -> Result<SubmittedChange, ApiError> {
        let unwritable = |message: String| ApiError::new(Code::CommitFailed, message);
        if self.options.is_none() {
            return Err(read_only());
        }
        change.changes.check().map_err(|error| refusal(&error))?;
        // Held until the change is written, which would create the folder of a removed index again.
        let _open = self.keep_open()?;
        let pending = self.pending.as_ref();
        let pending =
            pending.ok_or_else(|| unwritable("accepted changes cannot be stored: send `wait: true`".into()))?;
        let file = pending.add(&change).map_err(|error| unwritable(shortened(error.to_string())))?;
        let accepted = AcceptedChange { pending: Arc::clone(pending), file };
        Ok(SubmittedChange { changes: change.changes, accepted: Some(accepted) })
    }

    /// Queues the changes that an earlier process accepted and did not finish. Returns a ticket for each. The commit
    /// skips those that are committed already, which a process leaves if it is killed before it removes their files.
    pub(crate) fn resume(&self, metrics: &IndexMetrics, drain: &Drain) -> Vec<(PendingChange, ChangeTicket)> {
        let (Some(options), Some(pending)) = (&self.options, &self.pending) else { return Vec::new() };
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        let resumed = left.into_iter().map(|(file, change)| {
            tracing::info!(id = change.id, "resuming an accepted change");
            let accepted = AcceptedChange { pending: Arc::clone(pending), file };
            // Without a slot: the limits were checked when the change was accepted.
            let committer = self.committer(options.clone(), metrics);
            let ticket = self.enqueue(change.changes.clone(), Some(accepted), None, committer, drain);
            (change, ticket)
        });
        resumed.collect()
    }

    fn enqueue(
        &self,
        changes: Changes,
        accepted: Option<AcceptedChange>,
        slot: Option<FairSlot>,
        committer: Committer,
        drain: &Drain,
    ) -> ChangeTicket {
        let (progress, receiver) = watch::channel(ChangeProgress::Queued);
        // An accepted change is committed even if no client waits for it.
        let interest: Option<Arc<()>> = accepted.is_none().then(Arc::default);
        let wanted = interest.as_ref().map(Arc::downgrade);
        let ticket = ChangeTicket { progress: receiver, meter: self.meter.clone(), _interest: interest };
        // Held before the change is queued, so a drain cannot miss it.
        ticket.hold(drain);
        let preparing = (size(&changes) > SLICE).then(|| changes.clone());
        let number = self.queue.push(changes, preparing.is_some(), accepted, progress, slot);
        let turn = Arc::clone(&self.turn);
        let queue = self.queue.clone();
        let drain = drain.clone();
        // Each change spawns one task, and each task commits all changes that are ready, so no change is left over. The
        // task does not belong to a request: a client that disconnects cancels only a change that is still prepared.
        tokio::spawn(async move {
            let prepare = move || {
                if let Some(changes) = preparing {
                    let go_on = || wanted.as_ref().is_none_or(|wanted| wanted.strong_count() > 0);
                    committer.prepare(&queue, number, &changes, &go_on);
                }
                (committer, queue)
            };
            let Ok((committer, queue)) = tokio::task::spawn_blocking(prepare).await else { return };
            commit_all(Arc::new(committer), &queue, &turn, &drain).await;
        });
        ticket
    }
}

/// Commits changes until none is ready. While another process is writing to the index, one task at a time waits for it
/// with the accepted changes of all tasks, until the server drains.
async fn commit_all(
    committer: Arc<Committer>,
    queue: &ChangeQueue,
    turn: &Arc<tokio::sync::Mutex<CommitTurn>>,
    drain: &Drain,
) {
    let mut is_waiting = false;
    loop {
        // Given back after each commit, so a restore may come in between.
        let held = Arc::clone(turn).lock_owned().await;
        if held.awaits_process && !is_waiting {
            return;
        }
        let work = {
            let committer = Arc::clone(&committer);
            let queue = queue.clone();
            move || (held, committer.make_some(&queue))
        };
        // A panic has been logged already; its changes are dropped without a result, which `ChangeTicket` detects.
        let Ok((mut held, pass)) = tokio::task::spawn_blocking(work).await else {
            turn.lock().await.awaits_process &= !is_waiting;
            return;
        };
        is_waiting = pass == CommitPass::Locked;
        held.awaits_process = is_waiting;
        match pass {
            CommitPass::Idle => return,
            CommitPass::Made => continue,
            CommitPass::Locked => {}
        }
        if drain.phase() >= drain::DrainPhase::Draining {
            committer.leave(queue);
            held.awaits_process = false;
            return;
        }
        drop(held);
        tokio::select! {
            () = tokio::time::sleep(LOCKED_PAUSE) => {}
            () = drain.reached(drain::DrainPhase::Draining) => {}
        }
    }
}

fn read_only() -> ApiError {
    let message = "the index of this server is read-only: start the server without `--read-only-index`";
    ApiError::new(Code::ReadOnlyIndex, message)
}

impl From<Changes> for SubmittedChange {
    fn from(changes: Changes) -> SubmittedChange {
        SubmittedChange { changes, accepted: None }
    }
}

impl ChangeTicket {
    /// Returns the progress of the change.
    pub(crate) fn progress(&self) -> ChangeProgress {
        // Checked before reading: once the sender is dropped, the value no longer changes.
        let left = self.progress.has_changed().is_err();
        let progress = self.progress.borrow().clone();
        match progress {
            ChangeProgress::Queued | ChangeProgress::Running if left => ChangeProgress::Finished(Err(bug())),
            progress => progress,
        }
    }

    /// Returns the step of the running commit. `None` before its first step.
    pub(crate) fn step(&self) -> Option<CommitStep> {
        self.meter.get()
    }

    /// Waits for the change and returns its result.
    ///
    /// # Errors
    /// 400 for a change that is invalid for this index, 409 while another process writes, 500 if the commit failed, 503
    /// if the server ends before it can make an accepted change, which its next start makes.
    pub(crate) async fn finished(mut self) -> Result<CommitResponse, ApiError> {
        let _ = self.progress.wait_for(|progress| matches!(progress, ChangeProgress::Finished(_))).await;
        match self.progress() {
            ChangeProgress::Finished(made) => made,
            ChangeProgress::Queued | ChangeProgress::Running => Err(bug()),
        }
    }

    /// Keeps `kept` until the change is finished, even if its client has disconnected or did not wait for it.
    pub(crate) fn keep<T: Send + 'static>(&self, kept: T) {
        // Does not count as a waiting client.
        let over = ChangeTicket { _interest: None, ..self.clone() }.finished();
        tokio::spawn(async move {
            let _ = over.await;
            drop(kept);
        });
    }

    /// Makes a drain wait for the change as for a request, since its client may have disconnected or not waited for it.
    fn hold(&self, drain: &Drain) {
        // The drain's own ticket does not count as a waiting client.
        let over = ChangeTicket { _interest: None, ..self.clone() }.finished();
        let running = drain.enter();
        let drain = drain.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = over => {}
                () = drain.reached(drain::DrainPhase::Expired) => {}
            }
            drop(running);
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_index::{BuildOptions, Corpus, Document, OpenOptions, build};
    use waymark_runtime::embedding::Embedding;

    use super::*;

    #[test]
    fn a_library_is_closed_once_no_change_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("index");
        let text = "a text".to_owned();
        let document = Document { id: "a".to_owned(), title: String::new(), text, triples: None, metadata: None };
        let corpus = Corpus::from_documents("test", vec![document]);
        build(corpus, &Embedding::Mock, &dir, &BuildOptions::default(), &()).unwrap();
        let live = LiveIndex::open(&dir, Arc::new(Embedding::Mock), OpenOptions::default()).unwrap();
        let library = Library::new(Arc::new(live), CommitOptions::default());
        let changes = Changes::delete(["b".to_owned()]);
        let change = PendingChange { id: "commit-1".to_owned(), owner: None, changes };
        let AcceptedChange { pending, file } = library.accept(change.clone()).unwrap().accepted.unwrap();
        assert!(!library.close(), "accepted and not queued");
        pending.remove(&file);
        let (progress, _receiver) = watch::channel(ChangeProgress::Queued);
        let number = library.queue.push(change.changes.clone(), false, None, progress, None);
        assert!(!library.close(), "queued");
        library.queue.remove(number).unwrap();
        assert!(library.close());
        assert_eq!(library.accept(change).unwrap_err().code, Code::InvalidValue);
    }
}
