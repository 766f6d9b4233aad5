//! The documents of the index that is served, and the one way to change them.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Mutex, Semaphore};
use waymark_index::{BuildProgress, Changes, CommitOptions, CommitReport, IndexError, LiveIndex, Phase};

use super::error::{ApiError, Code};
use super::metrics::IndexMetrics;

/// Commits that may wait for the one that runs; more are refused.
const WAITING: usize = 64;

/// The documents of the index that is served.
#[derive(Debug)]
pub struct Library {
    /// The index itself.
    pub live: Arc<LiveIndex>,
    /// How changes are made; nothing where they are refused.
    options: Option<CommitOptions>,
    /// One commit runs, the others wait in the order they came.
    turn: Arc<Mutex<()>>,
    admitted: Arc<Semaphore>,
}

impl Library {
    /// An index that can be changed.
    pub fn new(live: Arc<LiveIndex>, options: CommitOptions) -> Library {
        let (turn, admitted) = (Arc::default(), Arc::new(Semaphore::new(1 + WAITING)));
        Library { live, options: Some(options), turn, admitted }
    }

    /// An index that is only read.
    pub fn read_only(live: Arc<LiveIndex>) -> Library {
        Library { options: None, ..Library::new(live, CommitOptions::default()) }
    }

    /// Makes `changes` on a thread of its own, after the commits that came before. Goes on to its end also when nobody
    /// waits for it any more, and is counted in `metrics`.
    ///
    /// # Errors
    /// 400 for changes that make no sense, 403 where nothing may be changed, 409 while another process writes, 503 when
    /// too many commits wait already.
    pub(crate) async fn commit(&self, changes: Changes, metrics: &IndexMetrics) -> Result<CommitReport, ApiError> {
        let Some(options) = self.options.clone() else {
            let message = "this server only reads its index: start it without `--read-only-index`";
            return Err(ApiError::new(Code::ReadOnlyIndex, message));
        };
        let too_many = |_| ApiError::new(Code::QueueFull, "too many commits are waiting");
        let admitted = Arc::clone(&self.admitted).try_acquire_owned().map_err(too_many)?;
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let live = Arc::clone(&self.live);
        let (span, counts) = (tracing::Span::current(), metrics.clone());
        let work = move || -> Result<CommitReport, ApiError> {
            let _held = (admitted, turn);
            span.in_scope(|| {
                let begun = Instant::now();
                let done = live.commit(changes, &options, &Told(begun)).map_err(|error| refusal(&error));
                counts.committed(begun.elapsed(), &done);
                if let Err(error) = &done
                    && error.code == Code::CommitFailed
                {
                    tracing::warn!(error = error.message, "not committed");
                }
                let report = done?;
                let CommitReport { added, replaced, removed, cut, .. } = report;
                let (snapshot, seconds) = (report.manifest.snapshot, begun.elapsed().as_secs_f64());
                tracing::info!(snapshot, added, replaced, removed, cut, seconds, "committed");
                Ok(report)
            })
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| {
            metrics.commit_failed();
            ApiError::new(Code::CommitFailed, "the commit ran into a bug in the server")
        })?
    }
}

/// Tells the log when each phase of a commit begins.
struct Told(Instant);

impl BuildProgress for Told {
    fn update(&self, phase: Phase, done: u64, total: Option<u64>) {
        if done == 0 {
            tracing::debug!(%phase, total, seconds = self.0.elapsed().as_secs_f64(), "committing");
        }
    }
}

fn refusal(error: &IndexError) -> ApiError {
    let message = error.to_string();
    match error {
        IndexError::BadChange { .. } | IndexError::Emptied { .. } | IndexError::NoTriples { .. } => {
            ApiError::invalid("documents", message)
        }
        IndexError::Locked { .. } => ApiError::new(Code::IndexLocked, message),
        _ => ApiError::new(Code::CommitFailed, format!("the commit failed: {message}")),
    }
}
