//! Documents of the served index, and the queue of changes to them.
//!
//! One commit runs at a time. Changes that arrive meanwhile wait, and waiting changes of different documents go into the
//! next commit together, small ones first, up to a total size. The texts of a large change are embedded before its turn,
//! while others commit. Changes of the same document keep their order.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::Span;
use waymark_index::{
    Changes, CommitOptions, CommitReport, IndexError, LiveIndex, PendingChange, PendingChanges, PendingFile,
    PreparedVectors,
};

use super::auth::Caller;
use super::commit_meter::{CommitLog, CommitMeter, CommitStep};
use super::documents::CommitResponse;
use super::drain::{self, Drain};
use super::error::{ApiError, Code};
use super::fair_slots::{FairSlot, FairSlots};
use super::metrics::IndexMetrics;

/// Maximum number of changes waiting for the running commit; further ones are refused.
const MAX_WAITING: usize = 64;

/// Maximum length of a commit's error message, in characters. The message is kept, and may quote IDs of any length.
const MAX_ERROR_CHARS: usize = 512;

/// Size of the changes that are committed together, in documents and triples. A larger change is prepared before its turn.
const SLICE: usize = 512;

/// Time after which a change goes first, whatever its size.
const PATIENCE: Duration = Duration::from_secs(30);

/// Documents of the served index.
#[derive(Debug)]
pub struct Library {
    /// Served index.
    pub live: Arc<LiveIndex>,
    /// Options of commits. `None` makes the index read-only.
    options: Option<CommitOptions>,
    /// Held by the running commit.
    turn: Arc<tokio::sync::Mutex<()>>,
    queue: ChangeQueue,
    slots: FairSlots,
    meter: CommitMeter,
    /// Accepted changes that survive the end of the process. `None` if their folder cannot be read.
    pending: Option<Arc<PendingChanges>>,
    /// Changes that an earlier process accepted, until they are resumed.
    left: Mutex<Vec<(PendingFile, PendingChange)>>,
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

/// Handle to follow a change. The change is committed even if all its handles are dropped, except that a large change is
/// given up while it is prepared.
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

/// Queued change.
#[derive(Debug)]
struct QueuedChange {
    number: u64,
    changes: Changes,
    /// If `true`, the texts of the change are still being embedded.
    preparing: bool,
    prepared: Option<Arc<PreparedVectors>>,
    accepted: Option<AcceptedChange>,
    begun: Instant,
    /// Span of the request that made the change.
    span: Span,
    progress: watch::Sender<ChangeProgress>,
    slot: Option<FairSlot>,
}

/// Changes in the order of arrival; clones share them.
#[derive(Debug, Clone, Default)]
struct ChangeQueue(Arc<Mutex<WaitingChanges>>);

#[derive(Debug, Default)]
struct WaitingChanges {
    next_number: u64,
    changes: Vec<QueuedChange>,
}

/// Index, options and metrics needed for a commit.
struct Committer {
    live: Arc<LiveIndex>,
    options: CommitOptions,
    metrics: IndexMetrics,
    meter: CommitMeter,
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
        Library {
            live,
            options: Some(options),
            turn: Arc::default(),
            queue: ChangeQueue::default(),
            // One change beyond the waiting ones is being committed.
            slots: FairSlots::new(1 + MAX_WAITING, "unfinished changes of documents"),
            meter: CommitMeter::default(),
            pending,
            left: Mutex::new(left),
        }
    }

    /// Creates a read-only library.
    pub fn read_only(live: Arc<LiveIndex>) -> Library {
        Library { options: None, ..Library::new(live, CommitOptions::default()) }
    }

    /// Returns `true` if documents can be changed.
    pub(crate) fn writable(&self) -> bool {
        self.options.is_some()
    }

    /// Queues `changes` on behalf of `caller`. They are committed after earlier changes of the same documents, counted
    /// in `metrics`, and `drain` waits for them.
    ///
    /// # Errors
    /// 400 for changes that contradict each other, 403 if the index is read-only, 429 if the caller has its maximum
    /// number of unfinished changes, 503 if the queue is full. [`ChangeTicket::finished`] lists errors of the commit itself.
    pub(crate) fn submit(
        &self,
        change: SubmittedChange,
        caller: &Caller,
        metrics: &IndexMetrics,
        drain: &Drain,
    ) -> Result<ChangeTicket, ApiError> {
        let SubmittedChange { changes, accepted } = change;
        let options = self.options.clone().ok_or_else(read_only)?;
        let checked = changes.check().map_err(|error| refusal(&error)).and_then(|()| self.slots.take(caller));
        let slot = checked.inspect_err(|_| {
            // Refused after all, so it must not be resumed.
            if let Some(AcceptedChange { pending, file }) = &accepted {
                pending.remove(file);
            }
        })?;
        Ok(self.enqueue(changes, accepted, Some(slot), self.committer(options, metrics), drain))
    }

    fn committer(&self, options: CommitOptions, metrics: &IndexMetrics) -> Committer {
        let live = Arc::clone(&self.live);
        Committer { live, options, metrics: metrics.clone(), meter: self.meter.clone() }
    }

    /// Number of earlier snapshots to keep.
    ///
    /// # Errors
    /// 403 if the index is read-only.
    pub(crate) fn keep(&self) -> Result<usize, ApiError> {
        let options = self.options.as_ref();
        options.map(|options| options.keep).ok_or_else(read_only)
    }

    /// Makes a change durable before its commit, so that it may be acknowledged.
    ///
    /// # Errors
    /// 400 and 403 as [`Library::submit`], and 500 if the change cannot be written.
    pub(crate) fn accept(&self, change: PendingChange) -> Result<SubmittedChange, ApiError> {
        let unwritable = |message: String| ApiError::new(Code::CommitFailed, message);
        if self.options.is_none() {
            return Err(read_only());
        }
        change.changes.check().map_err(|error| refusal(&error))?;
        let pending = self.pending.as_ref();
        let pending =
            pending.ok_or_else(|| unwritable("accepted changes cannot be stored: send `wait: true`".into()))?;
        let file = pending.add(&change).map_err(|error| unwritable(shortened(error.to_string())))?;
        let accepted = AcceptedChange { pending: Arc::clone(pending), file };
        Ok(SubmittedChange { changes: change.changes, accepted: Some(accepted) })
    }

    /// Queues the changes that an earlier process accepted and did not commit. Returns a ticket for each.
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
        // Nobody need wait for an accepted change.
        let interest: Option<Arc<()>> = accepted.is_none().then(Arc::default);
        let wanted = interest.as_ref().map(Arc::downgrade);
        let ticket = ChangeTicket { progress: receiver, meter: self.meter.clone(), _interest: interest };
        // Held before the change is queued, so that a drain cannot miss it.
        ticket.hold(drain);
        let preparing = (size(&changes) > SLICE).then(|| changes.clone());
        let number = self.queue.push(changes, preparing.is_some(), accepted, progress, slot);
        let turn = Arc::clone(&self.turn);
        let queue = self.queue.clone();
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
            let turn = turn.lock_owned().await;
            let work = move || {
                let _held = turn;
                committer.make_all(&queue);
            };
            // A panic has been logged already; its changes are dropped without a result, which `ChangeTicket` detects.
            let _ = tokio::task::spawn_blocking(work).await;
        });
        ticket
    }
}

fn read_only() -> ApiError {
    let message = "the index of this server is read-only: start the server without `--read-only-index`";
    ApiError::new(Code::ReadOnlyIndex, message)
}

/// Size of a change: its number of documents and triples.
fn size(changes: &Changes) -> usize {
    let triples = changes.upsert.iter().map(|document| 1 + document.triples.as_ref().map_or(0, Vec::len));
    triples.sum::<usize>() + changes.delete.len()
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
    /// 400 for a change that is invalid for this index, 409 while another process writes, 500 if the commit failed.
    pub(crate) async fn finished(mut self) -> Result<CommitResponse, ApiError> {
        let _ = self.progress.wait_for(|progress| matches!(progress, ChangeProgress::Finished(_))).await;
        match self.progress() {
            ChangeProgress::Finished(made) => made,
            ChangeProgress::Queued | ChangeProgress::Running => Err(bug()),
        }
    }

    /// Makes a drain wait for the change as for a request, since its client may have disconnected or not waited for it.
    fn hold(&self, drain: &Drain) {
        // Without interest of its own.
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

impl ChangeQueue {
    /// Queues a change and returns its number.
    fn push(
        &self,
        changes: Changes,
        preparing: bool,
        accepted: Option<AcceptedChange>,
        progress: watch::Sender<ChangeProgress>,
        slot: Option<FairSlot>,
    ) -> u64 {
        let begun = Instant::now();
        let span = Span::current();
        let mut waiting = self.lock();
        let number = waiting.next_number;
        waiting.next_number += 1;
        let prepared = None;
        waiting.changes.push(QueuedChange {
            number,
            changes,
            preparing,
            prepared,
            accepted,
            begun,
            span,
            progress,
            slot,
        });
        number
    }

    /// Marks a change as prepared.
    fn prepared(&self, number: u64, prepared: Option<PreparedVectors>) {
        if let Some(change) = self.lock().changes.iter_mut().find(|change| change.number == number) {
            change.preparing = false;
            change.prepared = prepared.map(Arc::new);
        }
    }

    /// Removes a change from the queue.
    fn remove(&self, number: u64) -> Option<QueuedChange> {
        let mut waiting = self.lock();
        let place = waiting.changes.iter().position(|change| change.number == number)?;
        Some(waiting.changes.remove(place))
    }

    fn lock(&self) -> MutexGuard<'_, WaitingChanges> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the changes to commit next, among those that share no document with an earlier one: first
    /// those that have waited too long, then the smallest, up to the size of a slice.
    fn next(&self) -> Vec<QueuedChange> {
        let mut waiting = self.lock();
        let ready = apart(&waiting.changes).into_iter().zip(&waiting.changes).enumerate();
        let ready = ready.filter(|(_, (apart, change))| *apart && !change.preparing);
        let mut ready: Vec<(bool, usize, usize)> = ready
            .map(|(place, (_, change))| (change.begun.elapsed() < PATIENCE, size(&change.changes), place))
            .collect();
        ready.sort_unstable();
        let mut total = 0;
        let mut taken = HashSet::new();
        for (_, size, place) in ready {
            total += size;
            if total > SLICE && !taken.is_empty() {
                break;
            }
            taken.insert(place);
        }
        let mut place = 0..;
        let (next, later) = std::mem::take(&mut waiting.changes)
            .into_iter()
            .partition(|_| place.next().is_some_and(|place| taken.contains(&place)));
        waiting.changes = later;
        next
    }
}

/// Returns for each change whether it shares no document with any change before it.
fn apart(waiting: &[QueuedChange]) -> Vec<bool> {
    let mut named = HashSet::new();
    let changes = waiting.iter().map(|waiting| &waiting.changes);
    let apart = changes.map(|changes| {
        let apart = changes.ids().all(|id| !named.contains(id));
        named.extend(changes.ids());
        apart
    });
    apart.collect()
}

impl Committer {
    /// Embeds the texts of a large change. If the client has left, the change is given up.
    fn prepare(&self, queue: &ChangeQueue, number: u64, changes: &Changes, go_on: &dyn Fn() -> bool) {
        let prepare = || self.live.prepare(changes, self.options.batch, go_on);
        match catch_unwind(AssertUnwindSafe(prepare)) {
            Ok(Ok(Some(prepared))) => queue.prepared(number, Some(prepared)),
            Ok(Ok(None)) => {
                tracing::info!("the client left while its change was prepared: the change is given up");
                if let Some(change) = queue.remove(number) {
                    let gone = ApiError::new(Code::CommitFailed, "the client left before the change was committed");
                    change.progress.send_replace(ChangeProgress::Finished(Err(gone)));
                }
            }
            // The commit itself runs into the same error and reports it.
            Ok(Err(_)) | Err(_) => queue.prepared(number, None),
        }
    }

    /// Commits all changes that are ready.
    fn make_all(&self, queue: &ChangeQueue) {
        loop {
            let group = queue.next();
            if group.is_empty() {
                break;
            }
            self.make_next(group);
        }
    }

    /// Commits changes of different documents.
    fn make_next(&self, group: Vec<QueuedChange>) {
        // Before the changes count as running, so that none shows the last step of the previous commit.
        self.meter.set(None);
        for waiting in &group {
            waiting.progress.send_replace(ChangeProgress::Running);
        }
        // Log lines of the commit itself go to the span of the oldest change.
        if let Some(span) = group.first().map(|oldest| oldest.span.clone()) {
            span.in_scope(|| self.make(group));
        }
    }

    /// Commits changes together. If that fails, commits each one alone, so that none fails because of another.
    fn make(&self, mut group: Vec<QueuedChange>) {
        let together = group.len();
        // A single change is not needed again, so it need not be cloned.
        let taken = |waiting: &mut QueuedChange| match together {
            1 => std::mem::take(&mut waiting.changes),
            _ => waiting.changes.clone(),
        };
        let changes = group.iter_mut().map(taken).collect();
        let prepared = group.iter().filter_map(|waiting| waiting.prepared.clone()).collect();
        match self.commit(changes, prepared) {
            Ok(made) => {
                for (waiting, made) in group.into_iter().zip(made) {
                    self.tell(waiting, made, together);
                }
            }
            Err(error) if together > 1 => {
                tracing::warn!(
                    error = error.message,
                    together,
                    "commit of joined changes failed: retrying each change alone"
                );
                for waiting in group {
                    waiting.span.clone().in_scope(|| self.make(vec![waiting]));
                }
            }
            Err(error) => {
                for waiting in group {
                    self.tell(waiting, Err(error.clone()), together);
                }
            }
        }
    }

    /// Publishes one snapshot with all `changes` and returns the result of each.
    fn commit(
        &self,
        changes: Vec<Changes>,
        prepared: Vec<Arc<PreparedVectors>>,
    ) -> Result<Vec<Result<CommitReport, ApiError>>, ApiError> {
        let options = CommitOptions { prepared, ..self.options.clone() };
        let begun = Instant::now();
        let log = CommitLog { begun, meter: &self.meter };
        let commit = || self.live.commit_together(changes, &options, &log);
        // The panic hook has already printed the message and the location.
        let made = catch_unwind(AssertUnwindSafe(commit)).map_err(|_| bug())?.map_err(|error| refusal(&error))?;
        if made.iter().flatten().any(|report| report.published) {
            self.metrics.published(begun.elapsed());
        }
        Ok(made.into_iter().map(|made| made.map_err(|error| refusal(&error))).collect())
    }

    /// Reports the result of a change to the log, to the metrics, and to its tickets.
    fn tell(&self, waiting: QueuedChange, made: Result<CommitReport, ApiError>, together: usize) {
        let QueuedChange { begun, span, progress, slot, accepted, .. } = waiting;
        // Removed before the result is known, since a change that is reported as done must not be made again.
        if let Some(AcceptedChange { pending, file }) = accepted {
            pending.remove(&file);
        }
        span.in_scope(|| match &made {
            Ok(report) => {
                let CommitReport { added, replaced, removed, cut, .. } = *report;
                let snapshot = report.manifest.snapshot;
                let seconds = begun.elapsed().as_secs_f64();
                tracing::info!(snapshot, added, replaced, removed, cut, together, seconds, "committed");
            }
            Err(error) if error.code == Code::CommitFailed => {
                self.metrics.commit_failed();
                tracing::warn!(error = error.message, "commit failed");
            }
            Err(_) => {}
        });
        let made = made.map(|report| CommitResponse::of(&report, begun));
        // The slot is released before the result is sent, because the caller may send its next change at once.
        drop(slot);
        progress.send_replace(ChangeProgress::Finished(made));
    }
}

fn refusal(error: &IndexError) -> ApiError {
    let message = shortened(error.to_string());
    match error {
        IndexError::BadChange { .. } | IndexError::Emptied { .. } | IndexError::NoTriples { .. } => {
            ApiError::invalid("documents", message)
        }
        IndexError::Locked { .. } => ApiError::new(Code::IndexLocked, message),
        _ => ApiError::new(Code::CommitFailed, format!("the commit failed: {message}")),
    }
}

/// Shortens a long message by cutting out its middle, since the cause may stand at either end.
fn shortened(message: String) -> String {
    let start = |found: Option<(usize, char)>| found.map(|(at, _)| at);
    let head = start(message.char_indices().nth(MAX_ERROR_CHARS / 2));
    let tail = start(message.char_indices().nth_back(MAX_ERROR_CHARS / 2 - 1));
    match (head, tail) {
        (Some(head), Some(tail)) if head < tail => format!("{} … {}", &message[..head], &message[tail..]),
        _ => message,
    }
}

fn bug() -> ApiError {
    ApiError::new(Code::CommitFailed, "the commit ran into a bug in the server")
}
