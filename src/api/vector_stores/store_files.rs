//! `/v1/vector_stores/{id}/files`: files of a vector store.

use std::ops::Range;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::changeable;
use super::chunking::{ChunkSizes, ChunkingStrategy};
use super::ingestion::{self, AddedFiles};
use super::object::VectorStoreFileObject;
use super::record::{AttachedFile, IndexingStatus};
use super::search::VectorStoreSearchContent;
use super::store::VectorStore;
use crate::api::auth::Caller;
use crate::api::blocking::{run_blocking, run_to_end};
use crate::api::body::{JsonBody, WireRequest};
use crate::api::error::{ApiError, Code, ErrorBody, Refusals};
use crate::api::fair_slots::FairSlot;
use crate::api::files;
use crate::api::pagination::{self, CursorQuery, Page, PageRules};
use crate::api::path_param::PathParam;
use crate::api::search_results::{MAX_ATTRIBUTES, MAX_NAME_CHARS, MAX_TEXT_CHARS};
use crate::api::state::{AppState, now};

/// File to add to a vector store. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateVectorStoreFile)]
pub struct AddFile {
    /// ID of the file, from `/v1/files`.
    pub file_id: String,
    /// Up to 16 texts, numbers and booleans, which become metadata of the chunks: searches filter by them.
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<Map<String, Value>>,
    /// Splitting of the file into chunks; `auto` when not given.
    pub chunking_strategy: Option<ChunkingStrategy>,
}

impl WireRequest for AddFile {}

/// Change of a file of a vector store.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateVectorStoreFile)]
pub struct AttributesUpdate {
    /// Attributes that replace the old ones. `null` removes all attributes.
    // Without a function of its own, serde would take a missing field for `null`.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required, value_type = Option<Object>)]
    pub attributes: Option<Map<String, Value>>,
}

impl WireRequest for AttributesUpdate {}

/// File that was removed from a vector store.
#[derive(Debug, Serialize, ToSchema)]
pub struct VectorStoreFileDeleted {
    /// ID of the file.
    pub id: String,
    /// Always `vector_store.file.deleted`.
    pub object: &'static str,
    /// Always `true`.
    pub deleted: bool,
}

/// Texts of a file of a vector store.
#[derive(Debug, Serialize, ToSchema)]
pub struct VectorStoreFileContent {
    /// Always `vector_store.file_content.page`.
    pub object: &'static str,
    /// Texts of the chunks, in order.
    pub data: Vec<VectorStoreSearchContent>,
    /// `true` only if chunks were left out because of the size of the answer.
    pub has_more: bool,
    /// Always null.
    #[schema(required)]
    pub next_page: Option<String>,
}

/// File that a request may add.
#[derive(Debug)]
pub(super) struct CheckedFile {
    id: String,
    attributes: Map<String, Value>,
    sizes: Option<ChunkSizes>,
    /// ID of the batch that the file belongs to.
    batch: Option<String>,
}

impl AddFile {
    /// Checks that `caller` may add the file.
    ///
    /// # Errors
    /// 404 if there is no such file, 400 for invalid options.
    pub(super) fn validate(self, state: &AppState, caller: &Caller) -> Result<CheckedFile, ApiError> {
        let AddFile { file_id, attributes, chunking_strategy } = self;
        let stores = state.vector_stores()?;
        let (id, _) = files::find(state, caller, file_id).map_err(|error| error.with_param("file_id"))?;
        let attributes = attributes.unwrap_or_default();
        check_attributes(&attributes)?;
        let most = stores.opener.embedder().max_tokens();
        let sizes = chunking_strategy.map(|strategy| strategy.checked(most)).transpose()?.flatten();
        Ok(CheckedFile { id, attributes, sizes, batch: None })
    }
}

impl CheckedFile {
    /// Makes the file one of a batch.
    pub(super) fn in_batch(self, batch: String) -> CheckedFile {
        CheckedFile { batch: Some(batch), ..self }
    }
}

/// Adds files to `store`, in place of what it had of the same files, and starts indexing them. `slot` is given back
/// when they are indexed.
pub(super) async fn add_all(
    state: &AppState,
    store: &Arc<VectorStore>,
    files: Vec<CheckedFile>,
    slot: FairSlot,
) -> Result<(), ApiError> {
    let mut attached = Vec::with_capacity(files.len());
    for CheckedFile { id, attributes, sizes, batch } in files {
        let status = IndexingStatus::InProgress;
        let created_at = now();
        let file = AttachedFile {
            created_at,
            status,
            error: None,
            attributes,
            sizes,
            chunks: 0,
            bytes: 0,
            indexed: 0,
            batch,
            attempts: 0,
            removing: false,
            earlier_status: None,
        };
        attached.push((id, file));
    }
    let ids = attached.iter().map(|(id, _)| id.clone()).collect();
    let attaching = Arc::clone(store);
    let write = async move { ingestion::attach(&attaching, attached).await };
    index_after(state, store, AddedFiles { ids, _slot: slot }, write).await
}

/// Writes the records of files, and starts indexing those of them that wait.
async fn index_after(
    state: &AppState,
    store: &Arc<VectorStore>,
    added: AddedFiles,
    write: impl Future<Output = Result<(), ApiError>> + Send + 'static,
) -> Result<(), ApiError> {
    let state = state.clone();
    let store = Arc::clone(store);
    // A task of its own, because a client that disconnects ends the request: its files would wait until the next
    // change.
    run_to_end(async move {
        let written = write.await;
        // Also after an error, for the files whose records were written before it.
        ingestion::start(&state, store, Some(added));
        written
    })
    .await
}

/// Adds a file to a vector store.
///
/// The file is indexed in the background: its status tells when searches find it, or why they do not.
#[utoipa::path(post, path = "/v1/vector_stores/{id}/files", operation_id = "createVectorStoreFile", tag = "vector stores",
    params(("id" = String, Path, description = "ID of the vector store")),
    request_body = AddFile,
    responses(
        (status = 200, description = "the file, which is being indexed", body = VectorStoreFileObject),
        (status = 403, description = "the server was started with this index", body = ErrorBody),
        Refusals,
    ))]
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    JsonBody(request): JsonBody<AddFile>,
) -> Result<axum::Json<VectorStoreFileObject>, ApiError> {
    let store = changeable(&state, &caller, &id)?;
    let file = request.validate(&state, &caller)?;
    state.vector_stores()?.check_room(&caller).await?;
    let id = file.id.clone();
    let slot = state.vector_stores()?.take_places(&caller, 1)?;
    add_all(&state, &store, vec![file], slot).await?;
    described(&state, &store, &id).map(axum::Json)
}

/// Lists the files of a vector store, in the order in which they were added.
#[utoipa::path(get, path = "/v1/vector_stores/{id}/files", operation_id = "listVectorStoreFiles", tag = "vector stores",
    params(
        ("id" = String, Path, description = "ID of the vector store"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 100, description = "maximum number of files per page; defaults to 20"),
        ("order" = Option<String>, Query, description = "`desc` (the default) for the youngest first, or `asc`"),
        ("after" = Option<String>, Query, description = "ID of the last file on the previous page"),
        ("before" = Option<String>, Query, description = "ID of the first file on the next page"),
        ("filter" = Option<String>, Query, description = "`in_progress`, `completed`, `failed` or `cancelled`"),
    ),
    responses(
        (status = 200, description = "a page", body = Page<VectorStoreFileObject>),
        (status = 400, description = "a parameter is invalid", body = ErrorBody),
        (status = 404, description = "no such vector store", body = ErrorBody),
    ))]
pub(crate) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<Page<VectorStoreFileObject>>, ApiError> {
    let store = changeable(&state, &caller, &id)?;
    page(&state, &store, store.files(), query.as_deref().unwrap_or_default()).map(axum::Json)
}

/// Returns the page of `files` of a store that a query asks for. They are in the order in which they were added.
pub(super) fn page(
    state: &AppState,
    store: &VectorStore,
    mut files: Vec<(String, AttachedFile)>,
    query: &str,
) -> Result<Page<VectorStoreFileObject>, ApiError> {
    let mut filter = None;
    let query = CursorQuery::parse(query, PageRules::BOTH_WAYS, |name, value| {
        if name == "filter" {
            filter = Some(status(value)?);
        }
        Ok(name == "filter")
    })?;
    let most = state.vector_stores()?.opener.embedder().max_tokens();
    files.retain(|(_, file)| filter.is_none_or(|wanted| wanted == file.status));
    let files = files.into_iter().map(|(id, file)| (id.clone(), VectorStoreFileObject::new(store, id, file, most)));
    Page::placed(files.collect(), &query, |listed, id| match store.added_at(id) {
        Some(added_at) => Some(place_of_file(listed, added_at, id)),
        None => pagination::place_by_id(listed, id),
    })
}

/// Returns the range of a file in a list, or an empty one where it was.
fn place_of_file(listed: &[(String, VectorStoreFileObject)], added_at: u64, id: &str) -> Range<usize> {
    let begin = listed.partition_point(|(other, file)| (file.created_at, other.as_str()) < (added_at, id));
    let is_listed = listed.get(begin).is_some_and(|(other, _)| other == id);
    begin..begin + usize::from(is_listed)
}

/// Parses the status of a file.
fn status(name: &str) -> Result<IndexingStatus, ApiError> {
    match name {
        "in_progress" => Ok(IndexingStatus::InProgress),
        "completed" => Ok(IndexingStatus::Completed),
        "failed" => Ok(IndexingStatus::Failed),
        "cancelled" => Ok(IndexingStatus::Cancelled),
        other => {
            let message =
                format!("`filter` must be `in_progress`, `completed`, `failed` or `cancelled`, not `{other}`");
            Err(ApiError::invalid("filter", message))
        }
    }
}

/// Returns a file of a vector store.
#[utoipa::path(get, path = "/v1/vector_stores/{id}/files/{file_id}", operation_id = "retrieveVectorStoreFile",
    tag = "vector stores",
    params(
        ("id" = String, Path, description = "ID of the vector store"),
        ("file_id" = String, Path, description = "ID of the file"),
    ),
    responses(
        (status = 200, description = "the file", body = VectorStoreFileObject),
        (status = 404, description = "no such vector store or file", body = ErrorBody),
    ))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(ids): PathParam<(String, String)>,
) -> Result<axum::Json<VectorStoreFileObject>, ApiError> {
    let (store, file) = find(&state, &caller, ids)?;
    described(&state, &store, &file).map(axum::Json)
}

/// Replaces the attributes of a file of a vector store.
///
/// All else is kept. A file that has texts in the index is indexed again with its new attributes: until its status
/// is `completed`, searches find it by the old ones. Its batch counts it as before.
#[utoipa::path(post, path = "/v1/vector_stores/{id}/files/{file_id}", operation_id = "updateVectorStoreFile",
    tag = "vector stores",
    params(
        ("id" = String, Path, description = "ID of the vector store"),
        ("file_id" = String, Path, description = "ID of the file"),
    ),
    request_body = AttributesUpdate,
    responses((status = 200, description = "the file", body = VectorStoreFileObject), Refusals))]
pub(crate) async fn update(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(ids): PathParam<(String, String)>,
    JsonBody(request): JsonBody<AttributesUpdate>,
) -> Result<axum::Json<VectorStoreFileObject>, ApiError> {
    let (store, id) = find(&state, &caller, ids)?;
    let change = AddFile { file_id: id.clone(), attributes: request.attributes, chunking_strategy: None };
    let CheckedFile { attributes, .. } = change.validate(&state, &caller)?;
    let slot = state.vector_stores()?.take_places(&caller, 1)?;
    let updating = Arc::clone(&store);
    let file = id.clone();
    let write = async move { ingestion::update_attributes(&updating, file, attributes).await };
    index_after(&state, &store, AddedFiles { ids: vec![id.clone()], _slot: slot }, write).await?;
    described(&state, &store, &id).map(axum::Json)
}

/// Removes a file from a vector store. The file stays under `/v1/files`.
#[utoipa::path(delete, path = "/v1/vector_stores/{id}/files/{file_id}", operation_id = "deleteVectorStoreFile",
    tag = "vector stores",
    params(
        ("id" = String, Path, description = "ID of the vector store"),
        ("file_id" = String, Path, description = "ID of the file"),
    ),
    responses(
        (status = 200, description = "searches do not find the file any more", body = VectorStoreFileDeleted),
        (status = 404, description = "no such vector store or file", body = ErrorBody),
        (status = 500, description = "the index cannot be changed", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(ids): PathParam<(String, String)>,
) -> Result<axum::Json<VectorStoreFileDeleted>, ApiError> {
    let (store, id) = find(&state, &caller, ids)?;
    let running = state.drain.enter();
    let removing = id.clone();
    // A task of its own, because a client that disconnects ends the request.
    let removed = run_to_end(async move {
        // A drain waits for the removal, with or without its client.
        let _running = running;
        ingestion::remove(&state, &store, &removing).await
    });
    if !removed.await? {
        return Err(files::absent(&id).with_param("file_id"));
    }
    Ok(axum::Json(VectorStoreFileDeleted { id, object: "vector_store.file.deleted", deleted: true }))
}

/// Returns the texts of a file of a vector store, as they are indexed.
#[utoipa::path(get, path = "/v1/vector_stores/{id}/files/{file_id}/content", operation_id = "getVectorStoreFileContent",
    tag = "vector stores",
    params(
        ("id" = String, Path, description = "ID of the vector store"),
        ("file_id" = String, Path, description = "ID of the file"),
    ),
    responses(
        (status = 200, description = "the texts", body = VectorStoreFileContent),
        (status = 404, description = "no such vector store or file", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
    ))]
pub(crate) async fn content(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(ids): PathParam<(String, String)>,
) -> Result<axum::Json<VectorStoreFileContent>, ApiError> {
    let (store, id) = find(&state, &caller, ids)?;
    let limit = state.config.answer_bytes;
    let data = run_blocking(move || texts(&store, &id, limit)).await?;
    let (data, has_more) = data;
    Ok(axum::Json(VectorStoreFileContent { object: "vector_store.file_content.page", data, has_more, next_page: None }))
}

/// Reads the texts of a file, up to `limit` bytes. Also returns whether there are more.
fn texts(store: &VectorStore, id: &str, limit: usize) -> Result<(Vec<VectorStoreSearchContent>, bool), ApiError> {
    let mut data = Vec::new();
    let mut bytes = 0;
    let (Some(index), Some(file)) = (store.index(), store.file(id)) else { return Ok((data, false)) };
    let current = index.live().current();
    for chunk in file.chunk_ids(id) {
        let passage = current.passage(&chunk).map_err(|error| ApiError::new(Code::SearchFailed, error.to_string()))?;
        let Some(passage) = passage else { continue };
        bytes += passage.text.len();
        if bytes > limit && !data.is_empty() {
            return Ok((data, true));
        }
        data.push(VectorStoreSearchContent { text: passage.text });
    }
    Ok((data, false))
}

/// Returns the caller's vector store and the ID of one of its files.
fn find(
    state: &AppState,
    caller: &Caller,
    (id, file): (String, String),
) -> Result<(Arc<VectorStore>, String), ApiError> {
    let store = changeable(state, caller, &id)?;
    if store.file(&file).is_none() {
        return Err(files::absent(&file).with_param("file_id"));
    }
    Ok((store, file))
}

fn described(state: &AppState, store: &VectorStore, id: &str) -> Result<VectorStoreFileObject, ApiError> {
    let most = state.vector_stores()?.opener.embedder().max_tokens();
    // Another request may have removed it in between.
    let file = store.file(id).ok_or_else(|| files::absent(id).with_param("file_id"))?;
    Ok(VectorStoreFileObject::new(store, id.to_owned(), file, most))
}

/// Checks attributes by the limits of OpenAI's interface.
fn check_attributes(attributes: &Map<String, Value>) -> Result<(), ApiError> {
    let wrong = |reason: &str| ApiError::invalid("attributes", format!("`attributes` {reason}"));
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(wrong(&format!("must have at most {MAX_ATTRIBUTES} pairs, not {}", attributes.len())));
    }
    for (name, value) in attributes {
        if name.is_empty() || name.chars().count() > MAX_NAME_CHARS {
            return Err(wrong(&format!("must have names of 1 to {MAX_NAME_CHARS} characters")));
        }
        let fits = match value {
            Value::String(text) => text.chars().count() <= MAX_TEXT_CHARS,
            Value::Number(_) | Value::Bool(_) => true,
            Value::Null | Value::Array(_) | Value::Object(_) => false,
        };
        if !fits {
            let expected = format!("a number, a boolean or a text of at most {MAX_TEXT_CHARS} characters");
            return Err(ApiError::invalid(
                &format!("attributes.{name}"),
                format!("`attributes.{name}` must be {expected}"),
            ));
        }
    }
    Ok(())
}
