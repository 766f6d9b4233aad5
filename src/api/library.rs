//! Documents of the served index, and the queue of changes to them.
//!
//! One commit runs at a time. Changes that arrive meanwhile wait, and all waiting changes of different documents go
//! into the next commit, because a snapshot costs about the same for one document as for hundreds. Changes of the same
//! document keep their order.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use tracing::Span;
use waymark_index::{BuildPhase, BuildProgress, Changes, CommitOptions, CommitReport, IndexError, LiveIndex};

use super::auth::Caller;
use super::documents::CommitResponse;
use super::drain::{self, Drain};
use super::error::{ApiError, Code};
use super::fair_slots::{FairSlot, FairSlots};
use super::metrics::IndexMetrics;

/// Maximum number of changes waiting for the running commit; further ones are refused.
const MAX_WAITING: usize = 64;

/// Maximum length of a commit's error message, in characters. The message is kept, and may quote IDs of any length.
const MAX_ERROR_CHARS: usize = 512;

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

/// Progress of a commit within one of its phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommitStep {
    pub(crate) phase: BuildPhase,
    /// Number of units done: passages, vectors, files.
    pub(crate) done: u64,
    /// Number of all units. `None` if it is not known yet.
    pub(crate) total: Option<u64>,
}

/// Step of the running commit, or of the last one; clones share it.
#[derive(Debug, Clone, Default)]
struct CommitMeter(Arc<Mutex<Option<CommitStep>>>);

impl CommitMeter {
    fn set(&self, step: Option<CommitStep>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = step;
    }

    fn get(&self) -> Option<CommitStep> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handle to follow a change. The change is committed even if all its handles are dropped.
#[derive(Debug, Clone)]
pub(crate) struct ChangeTicket {
    progress: watch::Receiver<ChangeProgress>,
    /// Since one commit runs at a time, its step is that of every running change.
    meter: CommitMeter,
}

/// Queued change.
#[derive(Debug)]
struct QueuedChange {
    changes: Changes,
    begun: Instant,
    /// Span of the request that made the change.
    span: Span,
    progress: watch::Sender<ChangeProgress>,
    slot: FairSlot,
}

/// Changes in the order of arrival; clones share them.
#[derive(Debug, Clone, Default)]
struct ChangeQueue(Arc<Mutex<Vec<QueuedChange>>>);

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
        Library {
            live,
            options: Some(options),
            turn: Arc::default(),
            queue: ChangeQueue::default(),
            // One change beyond the waiting ones is being committed.
            slots: FairSlots::new(1 + MAX_WAITING, "unfinished changes of documents"),
            meter: CommitMeter::default(),
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
        changes: Changes,
        caller: &Caller,
        metrics: &IndexMetrics,
        drain: &Drain,
    ) -> Result<ChangeTicket, ApiError> {
        let Some(options) = self.options.clone() else {
            let message = "the index of this server is read-only: start the server without `--read-only-index`";
            return Err(ApiError::new(Code::ReadOnlyIndex, message));
        };
        changes.check().map_err(|error| refusal(&error))?;
        let slot = self.slots.take(caller)?;
        let (progress, ticket) = watch::channel(ChangeProgress::Queued);
        let ticket = ChangeTicket { progress: ticket, meter: self.meter.clone() };
        // Held before the change is queued, so that a drain cannot miss it.
        ticket.hold(drain);
        let begun = Instant::now();
        let span = Span::current();
        self.queue.lock().push(QueuedChange { changes, begun, span, progress, slot });
        let live = Arc::clone(&self.live);
        let committer = Committer { live, options, metrics: metrics.clone(), meter: self.meter.clone() };
        let turn = Arc::clone(&self.turn);
        let queue = self.queue.clone();
        // Each change spawns one task, and each task commits the oldest change together with others, so no change is
        // left over. The task does not belong to a request: a client that disconnects cancels nothing.
        tokio::spawn(async move {
            let turn = turn.lock_owned().await;
            let work = move || {
                let _held = turn;
                committer.make_next(queue.next());
            };
            // A panic has been logged already; its changes are dropped without a result, which `ChangeTicket` detects.
            let _ = tokio::task::spawn_blocking(work).await;
        });
        Ok(ticket)
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
        let over = self.clone().finished();
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
    fn lock(&self) -> MutexGuard<'_, Vec<QueuedChange>> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the changes to commit next: the oldest, and all that share no document with an earlier one.
    fn next(&self) -> Vec<QueuedChange> {
        let mut waiting = self.lock();
        let mut apart = apart(&waiting).into_iter();
        let (next, later) = std::mem::take(&mut *waiting).into_iter().partition(|_| apart.next() == Some(true));
        *waiting = later;
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
    /// Commits changes of different documents, if there are any.
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
        match self.commit(changes) {
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
    fn commit(&self, changes: Vec<Changes>) -> Result<Vec<Result<CommitReport, ApiError>>, ApiError> {
        let begun = Instant::now();
        let log = CommitLog { begun, meter: &self.meter };
        let commit = || self.live.commit_together(changes, &self.options, &log);
        // The panic hook has already printed the message and the location.
        let made = catch_unwind(AssertUnwindSafe(commit)).map_err(|_| bug())?.map_err(|error| refusal(&error))?;
        if made.iter().flatten().any(|report| report.published) {
            self.metrics.published(begun.elapsed());
        }
        Ok(made.into_iter().map(|made| made.map_err(|error| refusal(&error))).collect())
    }

    /// Reports the result of a change to the log, to the metrics, and to its tickets.
    fn tell(&self, waiting: QueuedChange, made: Result<CommitReport, ApiError>, together: usize) {
        let QueuedChange { begun, span, progress, slot, .. } = waiting;
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

/// Logs the beginning of each phase of a commit, and keeps its step for those who follow it.
struct CommitLog<'a> {
    begun: Instant,
    meter: &'a CommitMeter,
}

impl BuildProgress for CommitLog<'_> {
    fn update(&self, phase: BuildPhase, done: u64, total: Option<u64>) {
        self.meter.set(Some(CommitStep { phase, done, total }));
        if done == 0 {
            tracing::debug!(%phase, total, seconds = self.begun.elapsed().as_secs_f64(), "committing");
        }
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
