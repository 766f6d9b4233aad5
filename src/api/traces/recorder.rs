//! Recorder that stores the trace of an episode, however the episode ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::oneshot;
use waymark_agent::{PartialTrajectory, Trajectory};

use super::store::Traces;
use super::stored_trace::{StoredTrace, TraceEnd, TraceRequest};
use crate::api::episodes::ServedEpisode;
use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;

/// Decides whether the traces of a request's episodes are stored.
///
/// # Errors
/// 400 if the request demands a trace and the server stores none.
pub(crate) fn should_record(state: &AppState, store: Option<bool>) -> Result<bool, ApiError> {
    if store == Some(true) && !state.traces.is_enabled() {
        let message = "this server keeps no traces: start it with `--trace-count` and `--trace-bytes` above 0";
        return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("rag.store"));
    }
    Ok(store.unwrap_or(true) && state.traces.is_enabled())
}

/// Set to `true` once all episodes of a request were admitted. Traces of a refused request are not stored, because most
/// of its episodes were dropped only since another one was refused. Its prompts count towards no limit.
pub(crate) type RequestAdmission = Arc<AtomicBool>;

/// Recorder of one episode. If it is dropped without a result, it stores the trace as canceled.
#[derive(Debug)]
pub(crate) struct Recorder {
    traces: Traces,
    admission: RequestAdmission,
    asked: Option<TraceRequest>,
    remains: oneshot::Receiver<PartialTrajectory>,
}

impl Recorder {
    /// Creates a recorder of `episode`, which answers the request `asked`.
    pub(crate) fn new(
        state: &AppState,
        asked: TraceRequest,
        episode: &mut ServedEpisode,
        admission: &RequestAdmission,
    ) -> Recorder {
        let traces = state.traces.clone();
        let admission = Arc::clone(admission);
        // The receiver is taken now, because running consumes the episode.
        Recorder { traces, admission, asked: Some(asked), remains: episode.partial() }
    }

    /// Stores the trace of an ended episode, and returns the error that ended it.
    pub(crate) fn end(mut self, outcome: Result<Trajectory, ApiError>) -> Option<ApiError> {
        match outcome {
            Ok(trajectory) => {
                if let Some(asked) = self.asked.take() {
                    self.traces.keep(StoredTrace::finished(asked, trajectory));
                }
                None
            }
            Err(error) => {
                self.break_off(TraceEnd::Failed(error.clone()));
                Some(error)
            }
        }
    }

    /// Stores what was recorded of an episode that did not end normally, unless it had not even begun.
    fn break_off(&mut self, end: TraceEnd) {
        // Taken, so dropping the recorder after its end stores nothing more.
        if let (Some(asked), Ok(record)) = (self.asked.take(), self.remains.try_recv()) {
            let kept = StoredTrace::new(asked, end, record);
            if !kept.is_empty() {
                self.traces.keep(kept);
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.admission.load(Relaxed) {
            self.break_off(TraceEnd::Cancelled);
        }
    }
}
