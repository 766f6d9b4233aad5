//! Commits of queued changes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use waymark_index::{Changes, CommitOptions, CommitReport, IndexError, LiveIndex, PendingFile, PreparedVectors};

use super::queue::{ChangeQueue, QueuedChange};
use super::{AcceptedChange, ChangeProgress};
use crate::api::commit_meter::{CommitLog, CommitMeter};
use crate::api::commit_response::CommitResponse;
use crate::api::error::{ApiError, Code};
use crate::api::metrics::IndexMetrics;

/// Maximum length of a commit's error message, in characters. The message is kept, and may quote IDs of any length.
const MAX_ERROR_CHARS: usize = 512;

/// Outcome of a pass over the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitPass {
    /// No change is ready.
    Idle,
    /// Changes were made or refused, and others may be ready.
    Made,
    /// Accepted changes are left, because another process is writing to the index.
    Locked,
}

/// Index, options and metrics needed for a commit.
pub(super) struct Committer {
    pub(super) live: Arc<LiveIndex>,
    pub(super) options: CommitOptions,
    pub(super) metrics: IndexMetrics,
    pub(super) meter: CommitMeter,
}

impl Committer {
    /// Embeds the texts of a large change. If the client has left, the change is given up.
    pub(super) fn prepare(&self, queue: &ChangeQueue, number: u64, changes: &Changes, go_on: &dyn Fn() -> bool) {
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

    /// Commits the next changes that are ready.
    pub(super) fn make_some(&self, queue: &ChangeQueue) -> CommitPass {
        let group = queue.next();
        if group.is_empty() {
            return CommitPass::Idle;
        }
        let kept = self.make_next(group);
        if kept.is_empty() {
            return CommitPass::Made;
        }
        kept.into_iter().for_each(|change| queue.put_back(change));
        // Clients that wait would otherwise wait for the other process behind the accepted changes.
        self.refuse_locked(queue.take_unaccepted());
        CommitPass::Locked
    }

    /// Gives all changes up for this process: the next one makes the accepted ones, and the others are refused.
    pub(super) fn leave(&self, queue: &ChangeQueue) {
        let (left, waiting): (Vec<_>, Vec<_>) =
            queue.take_all().into_iter().partition(|change| change.accepted.is_some());
        // A change that is not accepted is on no disk, so its client has to send it again.
        self.refuse_locked(waiting);
        tracing::info!(
            changes = left.len(),
            "another process is writing to the index: the next start makes these changes"
        );
        for change in left {
            let later = ApiError::new(Code::Draining, "the server ends: its next start makes this change");
            change.progress.send_replace(ChangeProgress::Finished(Err(later)));
        }
    }

    /// Refuses changes because another process is writing to the index.
    fn refuse_locked(&self, refused: Vec<QueuedChange>) {
        for change in refused {
            self.tell(change, Err(refusal(&IndexError::Locked { dir: self.live.dir().to_owned() })), 1);
        }
    }

    /// Commits changes of different documents. Returns accepted changes that have to wait for another process.
    fn make_next(&self, group: Vec<QueuedChange>) -> Vec<QueuedChange> {
        // Reset before the changes count as running, so none shows the last step of the previous commit.
        self.meter.set(None);
        for waiting in &group {
            waiting.progress.send_replace(ChangeProgress::Running);
        }
        // Log lines of the commit itself go to the span of the oldest change.
        let span = group.first().map_or_else(tracing::Span::none, |oldest| oldest.span.clone());
        span.in_scope(|| self.make(group))
    }

    /// Commits changes together. If that fails, commits each one alone, so none fails because of another. Returns
    /// accepted changes that have to wait for another process: they were acknowledged and must not be lost.
    fn make(&self, mut group: Vec<QueuedChange>) -> Vec<QueuedChange> {
        let together = group.len();
        // A single change that is not accepted is not needed again, so it need not be cloned.
        let taken = |waiting: &mut QueuedChange| {
            let changes = match together {
                1 if waiting.accepted.is_none() => std::mem::take(&mut waiting.changes),
                _ => waiting.changes.clone(),
            };
            (changes, waiting.accepted.as_ref().map(|accepted| accepted.file.clone()))
        };
        let changes = group.iter_mut().map(taken).collect();
        let prepared = group.iter().filter_map(|waiting| waiting.prepared.clone()).collect();
        match self.commit(changes, prepared) {
            Ok(made) => {
                for (waiting, made) in group.into_iter().zip(made) {
                    self.tell(waiting, made, together);
                }
                Vec::new()
            }
            Err(error) if together > 1 && error.code != Code::IndexLocked => {
                tracing::warn!(
                    error = error.message,
                    together,
                    "commit of joined changes failed: retrying each change alone"
                );
                let alone = |waiting: QueuedChange| waiting.span.clone().in_scope(|| self.make(vec![waiting]));
                group.into_iter().flat_map(alone).collect()
            }
            Err(error) => {
                let is_locked = error.code == Code::IndexLocked;
                let (kept, failed): (Vec<_>, Vec<_>) =
                    group.into_iter().partition(|waiting| is_locked && waiting.accepted.is_some());
                for waiting in failed {
                    self.tell(waiting, Err(error.clone()), together);
                }
                kept
            }
        }
    }

    /// Publishes one snapshot with all `changes`, accepted ones with their files, and returns the result of each.
    fn commit(
        &self,
        changes: Vec<(Changes, Option<PendingFile>)>,
        prepared: Vec<Arc<PreparedVectors>>,
    ) -> Result<Vec<Result<CommitReport, ApiError>>, ApiError> {
        let options = CommitOptions { prepared, ..self.options.clone() };
        let started = Instant::now();
        let log = CommitLog { started, meter: &self.meter };
        let commit = || self.live.commit_accepted(changes, &options, &log);
        // The panic hook has already printed the message and the location.
        let made = catch_unwind(AssertUnwindSafe(commit)).map_err(|_| bug())?.map_err(|error| refusal(&error))?;
        if made.iter().flatten().any(|report| report.published) {
            self.metrics.published(started.elapsed());
        }
        Ok(made.into_iter().map(|made| made.map_err(|error| refusal(&error))).collect())
    }

    /// Reports the result of a change to the log, to the metrics, and to its tickets.
    fn tell(&self, waiting: QueuedChange, made: Result<CommitReport, ApiError>, together: usize) {
        let QueuedChange { started, span, progress, slot, accepted, .. } = waiting;
        // Removed before the result is known, since a change that is reported as done must not be made again.
        if let Some(AcceptedChange { pending, file }) = accepted {
            pending.remove(&file);
        }
        span.in_scope(|| match &made {
            Ok(report) => {
                let CommitReport { added, replaced, removed, cut, .. } = *report;
                let snapshot = report.manifest.snapshot;
                let seconds = started.elapsed().as_secs_f64();
                tracing::info!(snapshot, added, replaced, removed, cut, together, seconds, "committed");
            }
            Err(error) if error.code == Code::CommitFailed => {
                self.metrics.commit_failed();
                tracing::warn!(error = error.message, "commit failed");
            }
            Err(_) => {}
        });
        let made = made.map(|report| CommitResponse::of(&report, started));
        // The slot is released before the result is sent, because the caller may send its next change at once.
        drop(slot);
        progress.send_replace(ChangeProgress::Finished(made));
    }
}

pub(super) fn refusal(error: &IndexError) -> ApiError {
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
pub(in crate::api) fn shortened(message: String) -> String {
    let start = |found: Option<(usize, char)>| found.map(|(at, _)| at);
    let head = start(message.char_indices().nth(MAX_ERROR_CHARS / 2));
    let tail = start(message.char_indices().nth_back(MAX_ERROR_CHARS / 2 - 1));
    match (head, tail) {
        (Some(head), Some(tail)) if head < tail => format!("{} … {}", &message[..head], &message[tail..]),
        _ => message,
    }
}

pub(super) fn bug() -> ApiError {
    ApiError::new(Code::CommitFailed, "the commit ran into a bug in the server")
}
