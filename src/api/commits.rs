//! `/v1/commits`: status of background changes to documents.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::{Changes, PendingChange};

use super::auth::Caller;
use super::blocking::{run_blocking, run_to_end};
use super::commit_response::CommitResponse;
use super::episodes;
use super::error::{ApiError, Code, ErrorBody, ErrorDetail};
use super::library::{ChangeProgress, ChangeTicket};
use super::path_param::PathParam;
use super::state::{AppState, now};
use super::vector_stores::DocumentRoom;
use crate::keys::KeyOwner;
use crate::store::Archive;

/// Maximum number of changes whose status is kept. Beyond it, the oldest of the key with the most are evicted.
const MAX_CHANGES: usize = 256;

/// Change that runs in the background.
#[derive(Debug)]
pub(crate) struct BackgroundChange {
    id: String,
    /// Key that owns the change; no other key may see it.
    owner: Option<KeyOwner>,
    created: u64,
    ticket: ChangeTicket,
}

/// Progress of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommitStage {
    /// Waiting for earlier changes, or for another process that is writing to the index.
    Queued,
    /// Being committed.
    Running,
    /// Committed.
    Done,
    /// Failed; it will not be retried.
    Failed,
}

/// Status of a background change.
#[derive(Debug, Serialize, ToSchema)]
pub struct CommitStatus {
    /// ID of the change.
    pub id: String,
    /// Always `documents.commit.status`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Progress of the change.
    pub status: CommitStage,
    /// Step of the commit, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<CommitPhaseProgress>,
    /// Result of the change, if it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitResponse>,
    /// Reason the change failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
}

/// Step of a running commit. A commit passes the phases `reading`, `embedding`, `linking`, `extracting`, `phrases`,
/// `facts`, `synonyms`, `sealing` and `publishing`, without those that it does not need.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CommitPhaseProgress {
    /// Name of the phase.
    pub phase: String,
    /// Number of units done: passages, vectors, files.
    pub done: u64,
    /// Number of all units in the phase. Null while unknown.
    #[schema(required)]
    pub total: Option<u64>,
}

/// Creates the store of background changes. Each takes a few KB at most.
pub(super) fn archive() -> Archive<BackgroundChange> {
    Archive::new(MAX_CHANGES, usize::MAX)
}

/// Makes `changes` durable, queues them, and responds. Gives `room` back when they are committed.
///
/// # Errors
/// Same as [`Library::accept`](super::Library) and [`Library::submit`](super::Library).
pub(super) async fn start(
    state: &AppState,
    caller: &Caller,
    changes: Changes,
    room: Option<DocumentRoom>,
) -> Result<Response, ApiError> {
    let running = state.drain.enter();
    let queuing = queue(state.clone(), caller.clone(), changes, room);
    // A change that was written and not queued would be applied at the next start, after others that the client sent
    // later.
    run_to_end(async move {
        // A drain waits for the change, with or without its client.
        let _running = running;
        queuing.await
    })
    .await
}

/// Makes changes durable and queues them.
async fn queue(
    state: AppState,
    caller: Caller,
    changes: Changes,
    room: Option<DocumentRoom>,
) -> Result<Response, ApiError> {
    let id = episodes::id("commit");
    let pending = PendingChange { id: id.clone(), owner: caller.owner.map(|owner| owner.to_string()), changes };
    let library = Arc::clone(state.library.as_ref().ok_or_else(ApiError::no_index)?);
    let accepted = {
        let library = Arc::clone(&library);
        // The change is acknowledged only once it is on disk, so it survives a crash.
        run_blocking(move || library.accept(pending)).await?
    };
    let ticket = library.submit(accepted, &caller, &state.metrics.index, &state.drain)?;
    if let Some(room) = room {
        ticket.keep(room);
    }
    let kept = BackgroundChange { id, owner: caller.owner, created: now(), ticket };
    let answer = (StatusCode::ACCEPTED, axum::Json(kept.status())).into_response();
    // Size 0: each change is small, so only their number is limited.
    state.commits.insert(kept.id.clone(), caller.owner, Arc::new(kept), 0);
    Ok(answer)
}

/// Queues the changes that an earlier process acknowledged and did not commit.
pub(super) fn resume(state: &AppState) {
    let Some(library) = &state.library else { return };
    for (PendingChange { id, owner, .. }, ticket) in library.resume(&state.metrics.index, &state.drain) {
        let owner = owner.as_deref().and_then(KeyOwner::parse);
        let kept = BackgroundChange { id: id.clone(), owner, created: now(), ticket };
        state.commits.insert(id, owner, Arc::new(kept), 0);
    }
}

/// Returns the status of a background change.
///
/// The server keeps the last 256 changes until it ends; a change that it has acknowledged and not committed by then is
/// committed after the next start, under the same ID. With API keys, each key sees only its own.
#[utoipa::path(get, path = "/v1/commits/{id}", operation_id = "retrieveCommit", tag = "documents",
    params(("id" = String, Path, description = "ID of the change")),
    responses(
        (status = 200, description = "status of the change", body = CommitStatus),
        (status = 404, description = "no such change is known", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<CommitStatus>, ApiError> {
    // A change of another key is reported as unknown, so its existence is not revealed.
    let kept = state.commits.get(&id).filter(|kept| kept.owner == caller.owner);
    let unknown = || ApiError::new(Code::CommitNotFound, format!("no change `{id}` is known")).with_param("id");
    let kept = kept.ok_or_else(unknown)?;
    Ok(axum::Json(kept.status()))
}

impl BackgroundChange {
    fn status(&self) -> CommitStatus {
        let (status, commit, error) = match self.ticket.progress() {
            ChangeProgress::Queued => (CommitStage::Queued, None, None),
            ChangeProgress::Running => (CommitStage::Running, None, None),
            ChangeProgress::Finished(Ok(made)) => (CommitStage::Done, Some(made), None),
            ChangeProgress::Finished(Err(error)) => (CommitStage::Failed, None, Some(error.body().error)),
        };
        let step = self.ticket.step().filter(|_| status == CommitStage::Running);
        let progress =
            step.map(|step| CommitPhaseProgress { phase: step.phase.to_string(), done: step.done, total: step.total });
        let id = self.id.clone();
        let created = self.created;
        CommitStatus { id, object: "documents.commit.status", created, status, progress, commit, error }
    }
}
