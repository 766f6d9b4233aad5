//! `/v1/commits`: changes of documents that nobody waits for, and what became of them.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::Changes;

use super::archive::Archive;
use super::auth::{Caller, KeyId};
use super::documents::CommitResponse;
use super::episodes;
use super::error::{ApiError, Code, ErrorBody, ErrorDetail};
use super::library::{Course, Ticket};
use super::state::{AppState, now};

/// Changes that are known; the oldest are forgotten.
const KEPT: usize = 256;

/// A change that nobody waits for.
#[derive(Debug)]
pub(crate) struct Background {
    id: String,
    /// Whose it is: nobody else may see it.
    owner: Option<KeyId>,
    created: u64,
    ticket: Ticket,
}

/// How far a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommitStage {
    /// It waits for changes that came before.
    Queued,
    /// It is being made.
    Running,
    /// It is made.
    Done,
    /// It was not made, and will not be.
    Failed,
}

/// A change that nobody waits for.
#[derive(Debug, Serialize, ToSchema)]
pub struct CommitStatus {
    /// Names it.
    pub id: String,
    /// Always `documents.commit.status`.
    pub object: &'static str,
    /// When it was asked for, in seconds since 1970.
    pub created: u64,
    /// How far it is.
    pub status: CommitStage,
    /// What it did, where it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitResponse>,
    /// Why it failed, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
}

/// Room for what is known of such changes. Each takes a few KB at most.
pub(super) fn archive() -> Archive<Background> {
    Archive::new(KEPT, usize::MAX)
}

/// Takes `changes` in and answers at once.
///
/// # Errors
/// As [`Library::enter`](super::Library).
pub(super) fn start(state: &AppState, caller: &Caller, changes: Changes) -> Result<Response, ApiError> {
    let ticket = state.library()?.enter(changes, caller, &state.metrics.index, &state.drain)?;
    let kept = Background { id: episodes::id("commit"), owner: caller.key.clone(), created: now(), ticket };
    let answer = (StatusCode::ACCEPTED, axum::Json(kept.status())).into_response();
    state.commits.insert(kept.id.clone(), Arc::new(kept), 0);
    Ok(answer)
}

/// What became of a change that was not waited for.
///
/// The last 256 of them are known, until the server ends. Where it has keys, each key sees its own alone.
#[utoipa::path(get, path = "/v1/commits/{id}", operation_id = "retrieveCommit", tag = "documents",
    params(("id" = String, Path, description = "the change's id")),
    responses(
        (status = 200, description = "how far it is", body = CommitStatus),
        (status = 404, description = "no such change is known", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<axum::Json<CommitStatus>, ApiError> {
    let unknown = |message: String| ApiError::new(Code::CommitNotFound, message).with_param("id");
    let Path(id) = id.map_err(|error| unknown(error.body_text()))?;
    let kept = state.commits.get(&id).filter(|kept| kept.owner == caller.key);
    let kept = kept.ok_or_else(|| unknown(format!("no change `{id}` is known")))?;
    Ok(axum::Json(kept.status()))
}

impl Background {
    fn status(&self) -> CommitStatus {
        let (status, commit, error) = match self.ticket.course() {
            Course::Queued => (CommitStage::Queued, None, None),
            Course::Running => (CommitStage::Running, None, None),
            Course::Over(Ok(made)) => (CommitStage::Done, Some(made), None),
            Course::Over(Err(error)) => (CommitStage::Failed, None, Some(error.body().error)),
        };
        let (id, created) = (self.id.clone(), self.created);
        CommitStatus { id, object: "documents.commit.status", created, status, commit, error }
    }
}
