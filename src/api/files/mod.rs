//! `/v1/files`: uploaded files, in OpenAI's format, from which vector stores are filled.
//!
//! | file | content |
//! |---|---|
//! | `upload`, `download` | the bodies of an upload and of a download |
//! | `form_reader`, `body_pieces`, `body_timer` | the form of an upload, and its bounds |
//! | `content_writer` | the content of an upload on its way to the disk |
//! | `registry` | files on disk |

mod body_pieces;
mod body_timer;
mod content_writer;
mod download;
mod form_reader;
pub(crate) mod registry;
mod upload;

use std::fs;
use std::sync::Arc;

use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;
use uuid::Uuid;

use self::registry::{FileRecord, MAX_FILES, unwritable};
use self::upload::UploadForm;
use super::auth::Caller;
use super::blocking::{run_blocking, run_to_end};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::pagination::{CursorQuery, Page, PageRules};
use super::path_param::PathParam;
use super::state::{AppState, now};
use super::vector_stores;

/// Purposes of files that this server has a use for.
const PURPOSES: [&str; 2] = ["assistants", "user_data"];

/// Pages of the list of files, as in OpenAI's interface. A server has no more files.
const PAGES: PageRules = PageRules { default: MAX_FILES, most: MAX_FILES, before: false };

/// Uploaded file.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = File)]
pub struct FileObject {
    /// ID of the file.
    pub id: String,
    /// Always `file`.
    pub object: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the upload, in seconds since 1970.
    pub created_at: u64,
    /// Always null: files stay until they are deleted.
    #[schema(required)]
    pub expires_at: Option<u64>,
    /// Name of the file.
    pub filename: String,
    /// `assistants` or `user_data`; both mean the same.
    pub purpose: String,
    /// Always `processed`. Vector stores report whether they could read the file.
    pub status: &'static str,
}

/// Deleted file.
#[derive(Debug, Serialize, ToSchema)]
pub struct FileDeleted {
    /// ID of the file.
    pub id: String,
    /// Always `file`.
    pub object: &'static str,
    /// Always `true`.
    pub deleted: bool,
}

impl FileObject {
    fn new(id: String, record: &FileRecord) -> FileObject {
        let FileRecord { created_at, filename, purpose, bytes, .. } = record.clone();
        FileObject { id, object: "file", bytes, created_at, expires_at: None, filename, purpose, status: "processed" }
    }
}

/// Uploads a file.
///
/// The name tells its format: JSONL, JSON lists, CSV, TSV, Parquet, Markdown, text, HTML, DOCX and PDF are read, also as
/// `.gz` or `.zst`. The server must have been started with `--vector-stores`; `--file-limit` bounds the size.
#[utoipa::path(post, path = "/v1/files", operation_id = "createFile", tag = "vector stores",
    request_body(content = UploadForm, content_type = "multipart/form-data"),
    responses((status = 200, description = "the file", body = FileObject), Refusals))]
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<axum::Json<FileObject>, ApiError> {
    let stores = state.vector_stores()?;
    let id = format!("file-{}", Uuid::now_v7().simple());
    let room = stores.files.reserve(&caller, &id, form_reader::most_bytes(&request, stores.limits.file))?;
    let upload = upload::receive(&state, &id, request).await?;
    if !PURPOSES.contains(&upload.purpose.as_str()) {
        let message = format!("`purpose` must be `assistants` or `user_data`, not `{}`", upload.purpose);
        return Err(ApiError::invalid("purpose", message));
    }
    let record = FileRecord {
        owner: caller.owner.map(|owner| owner.to_string()),
        created_at: now(),
        filename: upload.filename,
        purpose: upload.purpose,
        bytes: upload.bytes,
    };
    let stores = Arc::clone(stores);
    let part = upload.part;
    let object = FileObject::new(id, &record);
    run_blocking(move || stores.files.finish(room, &part, record).map_err(unwritable)).await?;
    Ok(axum::Json(object))
}

/// Lists the files of the caller's key, in one page unless `limit` is given.
#[utoipa::path(get, path = "/v1/files", operation_id = "listFiles", tag = "vector stores",
    params(
        ("purpose" = Option<String>, Query, description = "purpose that the files have"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 10_000, description = "maximum number of files per page; defaults to 10000"),
        ("order" = Option<String>, Query, description = "`desc` (the default) for the youngest first, or `asc`"),
        ("after" = Option<String>, Query, description = "ID of the last file on the previous page"),
    ),
    responses(
        (status = 200, description = "a page", body = Page<FileObject>),
        (status = 400, description = "the server has no vector stores, or a parameter is invalid", body = ErrorBody),
    ))]
pub(crate) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<Page<FileObject>>, ApiError> {
    let mut purpose = None;
    let query = CursorQuery::parse(query.as_deref().unwrap_or_default(), PAGES, |name, value| {
        if name == "purpose" {
            purpose = Some(value.to_owned());
        }
        Ok(name == "purpose")
    })?;
    let files = state.vector_stores()?.files.of(caller.owner).into_iter();
    let files = files.filter(|(_, record)| purpose.as_ref().is_none_or(|purpose| *purpose == record.purpose));
    let files = files.map(|(id, record)| (id.clone(), FileObject::new(id, &record)));
    Page::of(files.collect(), &query).map(axum::Json)
}

/// Returns a file without its content.
#[utoipa::path(get, path = "/v1/files/{id}", operation_id = "retrieveFile", tag = "vector stores",
    params(("id" = String, Path, description = "ID of the file")),
    responses(
        (status = 200, description = "the file", body = FileObject),
        (status = 400, description = "the server has no vector stores", body = ErrorBody),
        (status = 404, description = "no such file", body = ErrorBody),
    ))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<FileObject>, ApiError> {
    let (id, record) = find(&state, &caller, id)?;
    Ok(axum::Json(FileObject::new(id, &record)))
}

/// Returns the content of a file, as it was uploaded.
///
/// A client has `--send-seconds` to read it, and one second more for each 64 KiB.
#[utoipa::path(get, path = "/v1/files/{id}/content", operation_id = "downloadFile", tag = "vector stores",
    params(("id" = String, Path, description = "ID of the file")),
    responses(
        (status = 200, description = "the content", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 400, description = "the server has no vector stores", body = ErrorBody),
        (status = 404, description = "no such file", body = ErrorBody),
        (status = 503, description = "the file cannot be read", body = ErrorBody),
    ))]
pub(crate) async fn content(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<Response, ApiError> {
    let (id, record) = find(&state, &caller, id)?;
    let path = state.vector_stores()?.files.content(&id, &record);
    let content = path.clone();
    let length = run_blocking(move || fs::metadata(content).map(|about| about.len()).map_err(unwritable)).await?;
    caller.lifetime.end_by(Instant::now() + state.config.connection.send + download::time(length));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_LENGTH, HeaderValue::from(length)),
    ];
    Ok((headers, download::body(path)).into_response())
}

/// Deletes a file, and removes it from the vector stores that have it.
#[utoipa::path(delete, path = "/v1/files/{id}", operation_id = "deleteFile", tag = "vector stores",
    params(("id" = String, Path, description = "ID of the file")),
    responses(
        (status = 200, description = "the file is deleted", body = FileDeleted),
        (status = 400, description = "the server has no vector stores", body = ErrorBody),
        (status = 404, description = "no such file", body = ErrorBody),
        (status = 503, description = "the file cannot be removed", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<FileDeleted>, ApiError> {
    let (id, _) = find(&state, &caller, id)?;
    let running = state.drain.enter();
    let file = id.clone();
    // A task of its own, because a client that disconnects ends the request.
    run_to_end(async move {
        // A drain waits for the removal, with or without its client.
        let _running = running;
        remove(&state, &caller, &file).await
    })
    .await?;
    Ok(axum::Json(FileDeleted { id, object: "file", deleted: true }))
}

/// Removes a file and what vector stores have of it.
async fn remove(state: &AppState, caller: &Caller, id: &str) -> Result<(), ApiError> {
    vector_stores::forget_file(state, caller, id).await?;
    let stores = Arc::clone(state.vector_stores()?);
    let file = id.to_owned();
    run_blocking(move || stores.files.remove(&file).map_err(unwritable)).await?;
    // Another request may have attached the file in between. The file is deleted, whatever becomes of this.
    if let Err(error) = vector_stores::forget_file(state, caller, id).await {
        tracing::warn!(file = id, error = error.message, "a deleted file stays in a vector store");
    }
    Ok(())
}

/// Returns the caller's file `id`.
///
/// # Errors
/// 404 if there is none, 400 if the server has no vector stores.
pub(super) fn find(state: &AppState, caller: &Caller, id: String) -> Result<(String, Arc<FileRecord>), ApiError> {
    let record = state.vector_stores()?.files.get(caller.owner, &id).ok_or_else(|| absent(&id))?;
    Ok((id, record))
}

/// Returns the error for an unknown file.
pub(super) fn absent(id: &str) -> ApiError {
    ApiError::new(Code::FileNotFound, format!("the file `{id}` does not exist")).with_param("id")
}
