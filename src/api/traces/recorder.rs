//! Keeps an episode's trace when it is over, however it got there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::oneshot;

use super::kept::{Asked, End, Kept};
use crate::agent::{Episode, Fragment, Trajectory};
use crate::api::archive::Archive;
use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;

/// Whether traces of a request's episodes are kept.
///
/// # Errors
/// 400 when the request wants one and the server keeps none.
pub(crate) fn wanted(state: &AppState, store: Option<bool>) -> Result<bool, ApiError> {
    if store == Some(true) && !state.traces.keeps() {
        let message = "this server keeps no traces: start it with `--trace-count` and `--trace-bytes` above 0";
        return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("rag.store"));
    }
    Ok(store.unwrap_or(true) && state.traces.keeps())
}

/// Whether the request that episodes are run for was taken on. Of one that was refused nothing is kept: most of its
/// episodes are given up for the fault of another.
pub(crate) type Admission = Arc<AtomicBool>;

/// Keeps one episode's trace. Dropped without a word about its end, it keeps what there is as cancelled.
#[derive(Debug)]
pub(crate) struct Recorder {
    archive: Archive<Kept>,
    admission: Admission,
    asked: Option<Asked>,
    remains: oneshot::Receiver<Fragment>,
}

impl Recorder {
    /// A recorder of `episode`, which was asked for like this.
    pub(crate) fn new(state: &AppState, asked: Asked, episode: &mut Episode, admission: &Admission) -> Recorder {
        let (archive, admission) = (state.traces.clone(), Arc::clone(admission));
        Recorder { archive, admission, asked: Some(asked), remains: episode.remains() }
    }

    /// Keeps an episode that is over, and gives back the error that ended it.
    pub(crate) fn end(mut self, outcome: Result<Trajectory, ApiError>) -> Option<ApiError> {
        match outcome {
            Ok(trajectory) => {
                if let Some(asked) = self.asked.take() {
                    keep(&self.archive, Kept::finished(asked, trajectory));
                }
                None
            }
            Err(error) => {
                self.break_off(End::Failed(error.clone()));
                Some(error)
            }
        }
    }

    /// Keeps what is left of an episode that has not ended as it should; nothing, where it had not even begun.
    fn break_off(&mut self, end: End) {
        if let (Some(asked), Ok(record)) = (self.asked.take(), self.remains.try_recv()) {
            let kept = Kept::new(asked, end, record);
            if !kept.is_empty() {
                keep(&self.archive, kept);
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.admission.load(Relaxed) {
            self.break_off(End::Cancelled);
        }
    }
}

/// Keeps a trace under its episode's id.
pub(super) fn keep(archive: &Archive<Kept>, kept: Kept) {
    let bytes = kept.bytes();
    archive.insert(kept.id().to_owned(), Arc::new(kept), bytes);
}
