//! `/v1/vector_stores`: indexes that clients create, fill with files and search, in OpenAI's format. The indexes that
//! the server was started with are vector stores too, which cannot be changed here.
//!
//! | file | content |
//! |---|---|
//! | `search` | searches without a model |
//! | `store_files`, `file_batches` | the routes of the files of a vector store |
//! | `object`, `chunking` | wire types |
//! | `registry`, `store`, `record` | vector stores on disk |
//! | `removed_files` | times of files that were removed |
//! | `own_documents` | documents besides the files |
//! | `file_documents`, `document_size`, `readings` | files into documents, their sizes, and the threads that read them |
//! | `empty_search` | searches of a vector store without documents |
//! | `ingestion`, `slices` | documents into the index |

pub mod chunking;
mod document_size;
mod empty_search;
pub mod file_batches;
mod file_documents;
mod ingestion;
pub mod object;
mod own_documents;
mod readings;
pub mod record;
mod registry;
mod removed_files;
pub mod search;
mod slices;
mod store;
pub mod store_files;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use self::chunking::ChunkingStrategy;
use self::object::VectorStoreObject;
use self::record::StoreRecord;
use self::store::VectorStore;
use self::store_files::AddFile;
use super::auth::Caller;
use super::blocking::run_blocking;
use super::body::{JsonBody, WireRequest};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::files::registry::unwritable;
use super::indexes;
use super::metadata::check_metadata;
use super::pagination::{CursorQuery, Page, PageRules};
use super::path_param::PathParam;
use super::state::{AppState, now};

pub use registry::{IndexParts, OpenIndex, VectorStores};

pub(super) use empty_search::EmptySearch;
pub(super) use own_documents::DocumentRoom;

/// Maximum number of files that a vector store begins with.
const MAX_FIRST_FILES: usize = 100;

/// Maximum length of a name or a description, in characters.
const MAX_TEXT: usize = 512;

/// New vector store. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateVectorStore)]
pub struct VectorStoreRequest {
    /// Name.
    pub name: Option<String>,
    /// Description.
    pub description: Option<String>,
    /// IDs of up to 100 files to begin with.
    pub file_ids: Option<Vec<String>>,
    /// Splitting of these files into chunks; `auto` when not given.
    pub chunking_strategy: Option<ChunkingStrategy>,
    /// Up to 16 pairs that are returned with the vector store.
    pub metadata: Option<BTreeMap<String, String>>,
}

impl WireRequest for VectorStoreRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[("expires_after", &[])];
}

/// Change of a vector store. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateVectorStore)]
pub struct VectorStoreUpdate {
    /// New name.
    pub name: Option<String>,
    /// Pairs that replace the old ones.
    pub metadata: Option<BTreeMap<String, String>>,
}

impl WireRequest for VectorStoreUpdate {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[("expires_after", &[])];
}

/// Deleted vector store.
#[derive(Debug, Serialize, ToSchema)]
pub struct VectorStoreDeleted {
    /// ID of the vector store.
    pub id: String,
    /// Always `vector_store.deleted`.
    pub object: &'static str,
    /// Always `true`.
    pub deleted: bool,
}

/// Creates a vector store.
///
/// The vector store belongs to the caller's key. Its files are indexed in the background, with a graph; until then it
/// finds nothing.
/// The server must have been started with `--vector-stores`.
#[utoipa::path(post, path = "/v1/vector_stores", operation_id = "createVectorStore", tag = "vector stores",
    request_body = VectorStoreRequest,
    responses((status = 200, description = "the vector store", body = VectorStoreObject), Refusals))]
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<VectorStoreRequest>,
) -> Result<axum::Json<VectorStoreObject>, ApiError> {
    let VectorStoreRequest { name, description, file_ids, chunking_strategy, metadata } = request;
    let stores = Arc::clone(state.vector_stores()?);
    check_text("name", name.as_deref())?;
    check_text("description", description.as_deref())?;
    check_metadata(metadata.as_ref())?;
    let file_ids = file_ids.unwrap_or_default();
    if file_ids.len() > MAX_FIRST_FILES {
        let message = format!("`file_ids` must hold at most {MAX_FIRST_FILES} IDs, not {}", file_ids.len());
        return Err(ApiError::invalid("file_ids", message));
    }
    // Checked before the vector store is created, so a refusal leaves none behind.
    if !file_ids.is_empty() {
        stores.check_room(&caller).await?;
    }
    let mut adding = Vec::with_capacity(file_ids.len());
    for (at, file_id) in file_ids.into_iter().enumerate() {
        let checked = AddFile { file_id, attributes: None, chunking_strategy }.validate(&state, &caller);
        adding.push(checked.map_err(|error| error.renamed("file_id", &format!("file_ids[{at}]")))?);
    }
    let slot = if adding.is_empty() { None } else { Some(stores.take_places(&caller, adding.len())?) };
    let record = StoreRecord {
        owner: caller.owner.map(|owner| owner.to_string()),
        created_at: now(),
        name,
        description,
        metadata: metadata.unwrap_or_default(),
    };
    let id = format!("vs_{}", Uuid::now_v7().simple());
    let store = {
        let caller = caller.clone();
        run_blocking(move || stores.create(&caller, id, record)).await?
    };
    if let Some(slot) = slot {
        store_files::add_all(&state, &store, adding, slot).await?;
    }
    Ok(axum::Json(VectorStoreObject::new(&store)))
}

/// Lists the vector stores of the caller's key, and the indexes that the server was started with.
#[utoipa::path(get, path = "/v1/vector_stores", operation_id = "listVectorStores", tag = "vector stores",
    params(
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 100, description = "maximum number of vector stores per page; defaults to 20"),
        ("order" = Option<String>, Query, description = "`desc` (the default) for the youngest first, or `asc`"),
        ("after" = Option<String>, Query, description = "ID of the last vector store on the previous page"),
        ("before" = Option<String>, Query, description = "ID of the first vector store on the next page"),
    ),
    responses(
        (status = 200, description = "a page", body = Page<VectorStoreObject>),
        (status = 400, description = "a parameter is invalid", body = ErrorBody),
    ))]
pub(crate) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<Page<VectorStoreObject>>, ApiError> {
    let query = query.as_deref().unwrap_or_default();
    let query = CursorQuery::parse(query, PageRules::BOTH_WAYS, |_, _| Ok(false))?;
    let fixed = state.fixed_indexes().into_iter().filter_map(|name| fixed(&state, &caller, &name));
    let mut all: Vec<VectorStoreObject> = fixed.collect();
    let own = state.vector_stores.as_deref().map(|stores| stores.of(caller.owner)).unwrap_or_default();
    let describe = move || Ok(own.iter().map(|store| VectorStoreObject::new(store)).collect::<Vec<_>>());
    all.extend(run_blocking(describe).await?);
    Page::of(all.into_iter().map(|store| (store.id.clone(), store)).collect(), &query).map(axum::Json)
}

/// Returns a vector store without its files.
#[utoipa::path(get, path = "/v1/vector_stores/{id}", operation_id = "retrieveVectorStore", tag = "vector stores",
    params(("id" = String, Path, description = "ID of the vector store, or name of an index")),
    responses(
        (status = 200, description = "the vector store", body = VectorStoreObject),
        (status = 404, description = "no such vector store", body = ErrorBody),
    ))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<VectorStoreObject>, ApiError> {
    if let Some(fixed) = fixed(&state, &caller, &id) {
        return Ok(axum::Json(fixed));
    }
    let store = own(&state, &caller, &id).ok_or_else(|| absent(&state, &caller, &id))?;
    run_blocking(move || Ok(axum::Json(VectorStoreObject::new(&store)))).await
}

/// Changes the name or the metadata of a vector store.
#[utoipa::path(post, path = "/v1/vector_stores/{id}", operation_id = "updateVectorStore", tag = "vector stores",
    params(("id" = String, Path, description = "ID of the vector store")),
    request_body = VectorStoreUpdate,
    responses(
        (status = 200, description = "the vector store", body = VectorStoreObject),
        (status = 403, description = "the server was started with this index", body = ErrorBody),
        Refusals,
    ))]
pub(crate) async fn update(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    JsonBody(request): JsonBody<VectorStoreUpdate>,
) -> Result<axum::Json<VectorStoreObject>, ApiError> {
    let store = changeable(&state, &caller, &id)?;
    check_text("name", request.name.as_deref())?;
    check_metadata(request.metadata.as_ref())?;
    let VectorStoreUpdate { name, metadata } = request;
    run_blocking(move || {
        let change = |record: &mut StoreRecord| {
            record.name = name.or(record.name.take());
            record.metadata = metadata.unwrap_or_else(|| std::mem::take(&mut record.metadata));
        };
        store.update(change).map_err(unwritable)?;
        Ok(axum::Json(VectorStoreObject::new(&store)))
    })
    .await
}

/// Deletes a vector store. Its files stay under `/v1/files`, and searches that run finish.
#[utoipa::path(delete, path = "/v1/vector_stores/{id}", operation_id = "deleteVectorStore", tag = "vector stores",
    params(("id" = String, Path, description = "ID of the vector store")),
    responses(
        (status = 200, description = "the vector store is deleted", body = VectorStoreDeleted),
        (status = 403, description = "the server was started with this index", body = ErrorBody),
        (status = 404, description = "no such vector store", body = ErrorBody),
        (status = 503, description = "the vector store cannot be removed", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<VectorStoreDeleted>, ApiError> {
    let store = changeable(&state, &caller, &id)?;
    let stores = Arc::clone(state.vector_stores()?);
    // Another request may have deleted it meanwhile.
    if !run_blocking(move || stores.delete(&store)).await? {
        return Err(absent(&state, &caller, &id));
    }
    Ok(axum::Json(VectorStoreDeleted { id, object: "vector_store.deleted", deleted: true }))
}

/// Removes a file from all vector stores of `caller`.
///
/// # Errors
/// If a vector store cannot be changed. The file may have been removed from others by then.
pub(super) async fn forget_file(state: &AppState, caller: &Caller, file: &str) -> Result<(), ApiError> {
    for store in state.vector_stores()?.of(caller.owner) {
        // Asked first, because a removal waits for what the store is indexing.
        if store.file(file).is_some() {
            ingestion::remove(state, &store, file).await?;
        }
    }
    Ok(())
}

/// Describes an index that the server was started with, if `id` names one.
fn fixed(state: &AppState, caller: &Caller, id: &str) -> Option<VectorStoreObject> {
    if own(state, caller, id).is_some() {
        return None;
    }
    let view = state.named(caller, id)?;
    let bytes = view.library.as_ref().map_or(0, |library| library.live.current().manifest().bytes());
    let created = now().saturating_sub(state.started.elapsed().as_secs());
    Some(VectorStoreObject::fixed(view.index_id().to_owned(), created, bytes))
}

fn own(state: &AppState, caller: &Caller, id: &str) -> Option<Arc<VectorStore>> {
    state.vector_stores.as_deref()?.get(caller.owner, id)
}

/// Returns the caller's vector store `id`.
///
/// # Errors
/// 404 if there is none, 403 if the server was started with it.
fn changeable(state: &AppState, caller: &Caller, id: &str) -> Result<Arc<VectorStore>, ApiError> {
    if let Some(store) = own(state, caller, id) {
        return Ok(store);
    }
    if fixed(state, caller, id).is_some() {
        let message =
            format!("the server was started with the index `{id}`: change its documents by `/v1/documents?index={id}`");
        return Err(ApiError::new(Code::FixedVectorStore, message).with_param("id"));
    }
    Err(absent(state, caller, id))
}

/// Returns the error for an unknown vector store, or one that the caller may not use.
fn absent(state: &AppState, caller: &Caller, id: &str) -> ApiError {
    if state.refuses(caller, id) {
        return indexes::forbidden(caller).with_param("id");
    }
    let names = state.index_names(caller);
    let message = match state.vector_stores {
        Some(_) => format!("unknown vector store `{id}`: expected the ID of one of this key, {names}"),
        None => format!("unknown vector store `{id}`: expected {names}"),
    };
    ApiError::new(Code::VectorStoreNotFound, message).with_param("id")
}

fn check_text(param: &str, text: Option<&str>) -> Result<(), ApiError> {
    match text.map(|text| text.chars().count()) {
        Some(count) if count > MAX_TEXT => {
            Err(ApiError::invalid(param, format!("`{param}` must have at most {MAX_TEXT} characters, not {count}")))
        }
        _ => Ok(()),
    }
}
