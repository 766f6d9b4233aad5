//! `/v1/vector_stores/{id}/file_batches`: files that are added to a vector store together.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::changeable;
use super::chunking::ChunkingStrategy;
use super::object::{FileCounts, VectorStoreFileObject};
use super::record::{BatchRecord, IndexingStatus};
use super::store::VectorStore;
use super::store_files::{self, AddFile};
use crate::api::auth::Caller;
use crate::api::blocking::run_blocking;
use crate::api::body::{JsonBody, WireRequest};
use crate::api::error::{ApiError, Code, ErrorBody, Refusals};
use crate::api::files::registry::unwritable;
use crate::api::pagination::Page;
use crate::api::path_param::PathParam;
use crate::api::state::{AppState, now};

/// Maximum number of files of a batch.
const MAX_FILES: usize = 500;

/// Files to add to a vector store together: `file_ids` or `files`. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateVectorStoreFileBatch)]
pub struct FileBatchRequest {
    /// IDs of up to 500 files, from `/v1/files`.
    pub file_ids: Option<Vec<String>>,
    /// Up to 500 files with attributes and a splitting of their own.
    pub files: Option<Vec<AddFile>>,
    /// Attributes of each file in `file_ids`.
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<Map<String, Value>>,
    /// Splitting of each file in `file_ids` into chunks; `auto` when not given.
    pub chunking_strategy: Option<ChunkingStrategy>,
}

impl WireRequest for FileBatchRequest {}

/// Files that were added to a vector store together.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VectorStoreFileBatch)]
pub struct FileBatchObject {
    /// ID of the batch.
    pub id: String,
    /// Always `vector_store.files_batch`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created_at: u64,
    /// ID of the vector store.
    pub vector_store_id: String,
    /// `in_progress` while files are being indexed, then `completed`, or `cancelled` if some were not indexed for that reason.
    pub status: IndexingStatus,
    /// Numbers of files by status. Files that were removed or added again since then are not counted.
    pub file_counts: FileCounts,
}

impl FileBatchObject {
    fn new(store: &VectorStore, id: String, record: &BatchRecord) -> FileBatchObject {
        let mut counts = FileCounts::default();
        store.batch_files(&id).iter().for_each(|(_, file)| counts.add(file.status_in_batch()));
        // A cancellation that fails halfway cancels files before the record of the batch is written.
        let is_canceled = record.cancelled || counts.cancelled > 0;
        let status = match counts.in_progress {
            0 if is_canceled => IndexingStatus::Cancelled,
            0 => IndexingStatus::Completed,
            _ => IndexingStatus::InProgress,
        };
        FileBatchObject {
            id,
            object: "vector_store.files_batch",
            created_at: record.created_at,
            vector_store_id: store.id.clone(),
            status,
            file_counts: counts,
        }
    }
}

/// Batch of one of the caller's vector stores.
struct FoundBatch {
    store: Arc<VectorStore>,
    id: String,
    record: BatchRecord,
}

/// Field of a request that holds its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilesField {
    /// `file_ids`, whose files share all options.
    Ids,
    /// `files`, each with options of its own.
    Files,
}

impl FilesField {
    fn name(self) -> &'static str {
        match self {
            FilesField::Ids => "file_ids",
            FilesField::Files => "files",
        }
    }

    /// Returns an error about file number `at` with the path of the field at fault in the request.
    fn located(self, at: usize, error: ApiError) -> ApiError {
        let file = format!("{}[{at}]", self.name());
        match self {
            FilesField::Ids => error.renamed("file_id", &file),
            FilesField::Files => error.nested(&file),
        }
    }
}

impl FileBatchRequest {
    /// Returns the files, each with its attributes, and the field that holds them.
    fn files(self) -> Result<(FilesField, Vec<AddFile>), ApiError> {
        let FileBatchRequest { file_ids, files, attributes, chunking_strategy } = self;
        let alone = |field: &str| {
            ApiError::invalid(field, format!("`{field}` belongs to `file_ids`: give it in each of `files`"))
        };
        let (field, files) = match (file_ids, files) {
            (Some(ids), None) => {
                let file = |file_id| AddFile { file_id, attributes: attributes.clone(), chunking_strategy };
                (FilesField::Ids, ids.into_iter().map(file).collect())
            }
            (None, Some(_)) if attributes.is_some() => return Err(alone("attributes")),
            (None, Some(_)) if chunking_strategy.is_some() => return Err(alone("chunking_strategy")),
            (None, Some(files)) => (FilesField::Files, files),
            (None, None) => return Err(ApiError::missing("file_ids")),
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid("files", "`files` and `file_ids` exclude each other: give one of them"));
            }
        };
        let name = field.name();
        if !(1..=MAX_FILES).contains(&files.len()) {
            let message = format!("`{name}` must hold from 1 to {MAX_FILES} files, not {}", files.len());
            return Err(ApiError::invalid(name, message));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = files.iter().position(|file| !seen.insert(file.file_id.as_str())) {
            let message = format!("`{name}` holds the file `{}` twice", files[twice].file_id);
            return Err(field.located(twice, ApiError::invalid("file_id", message)));
        }
        Ok((field, files))
    }
}

/// Adds files to a vector store together.
///
/// The files are indexed in the background: the counts of the batch tell how many searches find. A request with an
/// invalid file adds none.
#[utoipa::path(post, path = "/v1/vector_stores/{id}/file_batches", operation_id = "createVectorStoreFileBatch",
    tag = "vector stores",
    params(("id" = String, Path, description = "ID of the vector store")),
    request_body = FileBatchRequest,
    responses(
        (status = 200, description = "the batch, whose files are being indexed", body = FileBatchObject),
        (status = 403, description = "the server was started with this index", body = ErrorBody),
        Refusals,
    ))]
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    JsonBody(request): JsonBody<FileBatchRequest>,
) -> Result<axum::Json<FileBatchObject>, ApiError> {
    let store = changeable(&state, &caller, &id)?;
    let batch = format!("vsfb_{}", Uuid::now_v7().simple());
    let (field, requested) = request.files()?;
    let mut files = Vec::with_capacity(requested.len());
    for (at, file) in requested.into_iter().enumerate() {
        let checked = file.validate(&state, &caller).map_err(|error| field.located(at, error))?;
        files.push(checked.in_batch(batch.clone()));
    }
    let stores = state.vector_stores()?;
    stores.check_room(&caller).await?;
    let slot = stores.take_places(&caller, files.len())?;
    let record = BatchRecord { created_at: now(), cancelled: false };
    let creating = Arc::clone(&store);
    let name = batch.clone();
    let created = record.clone();
    // Written before its files, whose records name the batch.
    run_blocking(move || creating.add_batch(&name, created).map_err(unwritable)).await?;
    store_files::add_all(&state, &store, files, slot).await?;
    Ok(axum::Json(FileBatchObject::new(&store, batch, &record)))
}

/// Returns a batch of files.
#[utoipa::path(get, path = "/v1/vector_stores/{id}/file_batches/{batch_id}",
    operation_id = "retrieveVectorStoreFileBatch", tag = "vector stores",
    params(
        ("id" = String, Path, description = "ID of the vector store"),
        ("batch_id" = String, Path, description = "ID of the batch"),
    ),
    responses(
        (status = 200, description = "the batch", body = FileBatchObject),
        (status = 404, description = "no such vector store or batch", body = ErrorBody),
    ))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(ids): PathParam<(String, String)>,
) -> Result<axum::Json<FileBatchObject>, ApiError> {
    let FoundBatch { store, id, record } = find(&state, &caller, ids)?;
    Ok(axum::Json(FileBatchObject::new(&store, id, &record)))
}

/// Cancels a batch of files.
///
/// Files that wait are not indexed any more; a file that had been indexed before it was added to the batch keeps what was
/// indexed then. Those that are being indexed right now, and those that searches find, stay.
#[utoipa::path(post, path = "/v1/vector_stores/{id}/file_batches/{batch_id}/cancel",
    operation_id = "cancelVectorStoreFileBatch", tag = "vector stores",
    params(
        ("id" = String, Path, description = "ID of the vector store"),
        ("batch_id" = String, Path, description = "ID of the batch"),
    ),
    responses(
        (status = 200, description = "the batch", body = FileBatchObject),
        (status = 404, description = "no such vector store or batch", body = ErrorBody),
        (status = 503, description = "the change cannot be written", body = ErrorBody),
    ))]
pub(crate) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(ids): PathParam<(String, String)>,
) -> Result<axum::Json<FileBatchObject>, ApiError> {
    let FoundBatch { store, id, .. } = find(&state, &caller, ids)?;
    let canceling = Arc::clone(&store);
    let batch = id.clone();
    let record = run_blocking(move || canceling.cancel_batch(&batch).map_err(unwritable)).await?;
    let record = record.ok_or_else(|| unknown(&id))?;
    Ok(axum::Json(FileBatchObject::new(&store, id, &record)))
}

/// Lists the files of a batch, in the order in which they were added.
#[utoipa::path(get, path = "/v1/vector_stores/{id}/file_batches/{batch_id}/files",
    operation_id = "listFilesInVectorStoreBatch", tag = "vector stores",
    params(
        ("id" = String, Path, description = "ID of the vector store"),
        ("batch_id" = String, Path, description = "ID of the batch"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 100, description = "maximum number of files per page; defaults to 20"),
        ("order" = Option<String>, Query, description = "`desc` (the default) for the youngest first, or `asc`"),
        ("after" = Option<String>, Query, description = "ID of the last file on the previous page"),
        ("before" = Option<String>, Query, description = "ID of the first file on the next page"),
        ("filter" = Option<String>, Query, description = "`in_progress`, `completed`, `failed` or `cancelled`"),
    ),
    responses(
        (status = 200, description = "a page", body = Page<VectorStoreFileObject>),
        (status = 400, description = "a parameter is invalid", body = ErrorBody),
        (status = 404, description = "no such vector store or batch", body = ErrorBody),
    ))]
pub(crate) async fn list_files(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(ids): PathParam<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<Page<VectorStoreFileObject>>, ApiError> {
    let FoundBatch { store, id, .. } = find(&state, &caller, ids)?;
    let files = store.batch_files(&id);
    store_files::page(&state, &store, files, query.as_deref().unwrap_or_default()).map(axum::Json)
}

/// Returns one of the batches of the caller's vector stores. `ids` are those of the vector store and of the batch.
fn find(state: &AppState, caller: &Caller, ids: (String, String)) -> Result<FoundBatch, ApiError> {
    let (store, id) = ids;
    let store = changeable(state, caller, &store)?;
    let record = store.batch(&id).ok_or_else(|| unknown(&id))?;
    Ok(FoundBatch { store, id, record })
}

fn unknown(id: &str) -> ApiError {
    let message = format!("unknown file batch `{id}`: expected the ID of one of this vector store");
    ApiError::new(Code::FileBatchNotFound, message).with_param("batch_id")
}
