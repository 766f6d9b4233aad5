//! `/v1/snapshots`: earlier snapshots of the index that are kept, and restoring them.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::{IndexError, restore_snapshot, snapshots};

use super::blocking::run_blocking;
use super::error::{ApiError, Code, ErrorBody};
use super::indexes::IndexOnly;

/// Snapshot of the index.
#[derive(Debug, Serialize, ToSchema)]
pub struct SnapshotBody {
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Number of documents.
    pub documents: u64,
    /// Time of publication, in seconds since 1970. Absent if the file system does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
    /// If `true`, searches use this snapshot.
    pub current: bool,
}

/// Snapshots of the index.
#[derive(Debug, Serialize, ToSchema)]
pub struct SnapshotList {
    /// Always `list`.
    pub object: &'static str,
    /// Snapshots, newest first.
    pub data: Vec<SnapshotBody>,
}

/// Result of a restore.
#[derive(Debug, Serialize, ToSchema)]
pub struct RestoreResponse {
    /// Always `snapshot.restore`.
    pub object: &'static str,
    /// Number of the new snapshot.
    pub snapshot: u64,
    /// Number of documents.
    pub documents: u64,
}

/// Lists the current snapshot and the earlier ones that are kept (`--keep-snapshots`).
#[utoipa::path(get, path = "/v1/snapshots", operation_id = "listSnapshots", tag = "documents",
    params(("index" = Option<String>, Query, description = "name of the index; defaults to `default`")),
    responses(
    (status = 200, description = "the snapshots", body = SnapshotList),
    (status = 400, description = "the server has no index, or a parameter is invalid", body = ErrorBody),
    (status = 500, description = "the index is damaged", body = ErrorBody),
))]
pub(crate) async fn list(IndexOnly(state): IndexOnly) -> Result<axum::Json<SnapshotList>, ApiError> {
    let dir = state.library()?.live.dir().to_owned();
    run_blocking(move || {
        let found = snapshots(&dir).map_err(|error| failed(&error))?;
        let data = found.into_iter().map(|found| SnapshotBody {
            snapshot: found.number,
            documents: found.passages,
            published: found.published.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map(|time| time.as_secs()),
            current: found.current,
        });
        Ok(axum::Json(SnapshotList { object: "list", data: data.collect() }))
    })
    .await
}

/// Publishes the documents of a kept snapshot again, as a new snapshot.
///
/// The snapshot that was current is kept, so a restore can be undone.
#[utoipa::path(post, path = "/v1/snapshots/{snapshot}/restore", operation_id = "restoreSnapshot", tag = "documents",
    params(
        ("snapshot" = u64, Path, description = "number of the snapshot"),
        ("index" = Option<String>, Query, description = "name of the index; defaults to `default`"),
    ),
    responses(
        (status = 200, description = "the snapshot is restored", body = RestoreResponse),
        (status = 400, description = "the server has no index, or a parameter is invalid", body = ErrorBody),
        (status = 403, description = "the server's index is read-only", body = ErrorBody),
        (status = 404, description = "no such snapshot is kept", body = ErrorBody),
        (status = 409, description = "another process is writing to the index", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
    ))]
pub(crate) async fn restore(
    IndexOnly(state): IndexOnly,
    number: Result<Path<u64>, PathRejection>,
) -> Result<axum::Json<RestoreResponse>, ApiError> {
    let Path(number) =
        number.map_err(|error| ApiError::new(Code::SnapshotNotFound, error.body_text()).with_param("snapshot"))?;
    let library = state.library()?;
    let keep = library.keep()?;
    let live = Arc::clone(&library.live);
    // A commit would otherwise find the index locked.
    let commits = library.hold_commits().await;
    run_blocking(move || {
        let _held = commits;
        let manifest = restore_snapshot(live.dir(), number, keep).map_err(|error| failed(&error))?;
        // Published, whether or not it can be opened here at once; the watcher tries again.
        if let Err(error) = live.refresh() {
            tracing::warn!(%error, "cannot open the restored snapshot yet");
        }
        let object = "snapshot.restore";
        Ok(axum::Json(RestoreResponse { object, snapshot: manifest.snapshot, documents: manifest.passages }))
    })
    .await
}

fn failed(error: &IndexError) -> ApiError {
    let code = match error {
        IndexError::NoSnapshot { .. } => Code::SnapshotNotFound,
        IndexError::Locked { .. } => Code::IndexLocked,
        _ => Code::CommitFailed,
    };
    ApiError::new(code, error.to_string())
}
