//! `/v1/documents`: reads and changes the documents of the index while it is searched.

use std::collections::BTreeMap;

use axum::extract::RawQuery;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use waymark_index::{Changes, Document, Index, IndexError, Triple};

use super::auth::Caller;
use super::blocking::run_blocking;
use super::body::{JsonBody, WireRequest};
use super::commit_response::CommitResponse;
use super::commits::{self, CommitStatus};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::indexes::{IndexOnly, IndexedState};
use super::library::Library;
use super::pagination::{PAGE, limit};
use super::path_param::PathParam;
use super::state::AppState;
use super::vector_stores::DocumentRoom;

/// Size in bytes after which a page is closed.
const PAGE_BYTES: usize = 8 << 20;

/// Document of the index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentBody {
    /// ID of the document. A new document replaces the one with the same ID.
    pub id: String,
    /// Title; may be empty.
    #[serde(default)]
    pub title: String,
    /// Text of the passage.
    pub text: String,
    /// Facts in the text, as `[subject, relation, object]`. If absent and the index has a graph, the index's extractor
    /// produces them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Vec<String>>>)]
    pub triples: Option<Vec<Triple>>,
    /// Any other data about the document. It is stored but not searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
}

impl From<DocumentBody> for Document {
    fn from(DocumentBody { id, title, text, triples, metadata }: DocumentBody) -> Document {
        Document { id, title, text, triples, metadata }
    }
}

impl From<Document> for DocumentBody {
    fn from(Document { id, title, text, triples, metadata }: Document) -> DocumentBody {
        DocumentBody { id, title, text, triples, metadata }
    }
}

/// Documents to add or replace, and IDs of documents to remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpsertRequest {
    /// Documents, with distinct IDs. Either all of them are committed or none.
    pub documents: Vec<DocumentBody>,
    /// IDs of documents to remove; must not overlap with `documents`. Unknown IDs are counted and otherwise ignored.
    #[serde(default)]
    pub delete: Vec<String>,
    /// Texts that were cut into documents, by name, with the number of parts: `{"notes.md": 3}` if `documents` has
    /// `notes.md#1` to `notes.md#3`, 0 if it has `notes.md` whole. What an earlier version left is removed: parts with
    /// higher numbers and, if there are parts, the document with the name itself.
    #[serde(default)]
    pub chunked: BTreeMap<String, u64>,
    /// If `true` (the default), the response is sent when the change is committed. If `false`, it is sent at once and
    /// holds the ID of the change.
    pub wait: Option<bool>,
}

impl WireRequest for UpsertRequest {}

/// Document and the snapshot it was read from.
#[derive(Debug, Serialize, ToSchema)]
pub struct DocumentResponse {
    /// Always `document`.
    pub object: &'static str,
    /// Snapshot of the index.
    pub snapshot: u64,
    /// Document, with the triples it was added with.
    pub document: DocumentBody,
}

/// Page of documents.
#[derive(Debug, Serialize, ToSchema)]
pub struct DocumentList {
    /// Always `list`.
    pub object: &'static str,
    /// Snapshot of the index.
    pub snapshot: u64,
    /// Documents, in the order of the index.
    pub data: Vec<DocumentBody>,
    /// If `true`, there are more documents: request the next page with `after` set to the last ID.
    pub has_more: bool,
}

/// Adds or replaces documents, and removes others.
///
/// Searches continue meanwhile, each in the snapshot it started with. Changes of the same document are committed in
/// order. Waiting changes of different documents are committed together, and each one reports its own result.
#[utoipa::path(post, path = "/v1/documents", operation_id = "upsertDocuments", tag = "documents",
    params(("index" = Option<String>, Query, description = "name of the index; defaults to `default`")),
    request_body = UpsertRequest, responses(
    (status = 200, description = "the change is committed", body = CommitResponse),
    (status = 202, description = "the change is queued, because `wait` is `false`", body = CommitStatus),
    (status = 403, description = "the server's index is read-only", body = ErrorBody),
    (status = 409, description = "another process is writing to the index", body = ErrorBody),
    Refusals,
))]
pub(crate) async fn upsert(
    IndexOnly(state): IndexOnly,
    caller: Caller,
    JsonBody(request): JsonBody<UpsertRequest>,
) -> Result<Response, ApiError> {
    let UpsertRequest { documents, delete, chunked, wait } = request;
    let room = room(&state, &caller, &documents).await?;
    let chunked = chunked.into_iter().collect();
    let changes = Changes { delete, chunked, ..Changes::upsert(documents.into_iter().map(Document::from)) };
    if wait == Some(false) {
        return commits::start(&state, &caller, changes, room).await;
    }
    let ticket = state.library()?.submit(changes.into(), &caller, &state.metrics.index, &state.drain)?;
    if let Some(room) = room {
        ticket.keep(room);
    }
    Ok(axum::Json(ticket.finished().await?).into_response())
}

/// Takes room for documents that are added to a vector store. `None` for other indexes, which are not bounded.
///
/// # Errors
/// 429 if the caller's key would hold more than its share of the room for texts, 503 if there is no room.
async fn room(state: &AppState, caller: &Caller, documents: &[DocumentBody]) -> Result<Option<DocumentRoom>, ApiError> {
    let stores = state.vector_stores.clone().filter(|_| state.is_other && !documents.is_empty());
    let Some(stores) = stores else { return Ok(None) };
    let bytes: u64 = documents.iter().map(|document| document.bytes() as u64).sum();
    let caller = caller.clone();
    let store = state.index_id().to_owned();
    run_blocking(move || stores.take_room(&caller, &store, bytes)).await
}

/// Removes a document. Slashes in its ID may be written as `/` or `%2F`.
#[utoipa::path(delete, path = "/v1/documents/{*id}", operation_id = "deleteDocument", tag = "documents",
    params(
        ("id" = String, Path, description = "ID of the document"),
        ("index" = Option<String>, Query, description = "name of the index; defaults to `default`"),
    ),
    responses(
        (status = 200, description = "the document is removed", body = CommitResponse),
        (status = 403, description = "the server's index is read-only", body = ErrorBody),
        (status = 409, description = "another process is writing to the index", body = ErrorBody),
        Refusals,
    ))]
pub(crate) async fn delete(
    IndexOnly(state): IndexOnly,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<CommitResponse>, ApiError> {
    let library = state.library()?;
    let changes = Changes::delete([id.clone()]);
    let made = library.submit(changes.into(), &caller, &state.metrics.index, &state.drain)?.finished().await?;
    // Only the commit knows whether the document existed: a check beforehand could race with other changes.
    if made.absent > 0 { Err(absent(&id)) } else { Ok(axum::Json(made)) }
}

/// Returns a document. Slashes in its ID may be written as `/` or `%2F`.
#[utoipa::path(get, path = "/v1/documents/{*id}", operation_id = "retrieveDocument", tag = "documents",
    params(
        ("id" = String, Path, description = "ID of the document"),
        ("index" = Option<String>, Query, description = "name of the index; defaults to `default`"),
    ),
    responses(
        (status = 200, description = "the document", body = DocumentResponse),
        (status = 400, description = "the server has no index, or a parameter is invalid", body = ErrorBody),
        (status = 404, description = "no such document", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
    ))]
pub(crate) async fn get(
    IndexOnly(state): IndexOnly,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<DocumentResponse>, ApiError> {
    let index = state.library()?.live.current();
    let document = index.passage(&id).map_err(|error| broken(&error))?.ok_or_else(|| absent(&id))?;
    let snapshot = index.manifest().snapshot;
    Ok(axum::Json(DocumentResponse { object: "document", snapshot, document: document.into() }))
}

/// Lists the documents, page by page.
///
/// A page ends early if its documents exceed 8 MiB, so rely on `has_more` to detect the last page.
#[utoipa::path(get, path = "/v1/documents", operation_id = "listDocuments", tag = "documents",
    params(
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 100, description = "maximum number of documents per page, from 1 to 100; defaults to 20"),
        ("after" = Option<String>, Query, description = "ID of the last document on the previous page"),
        ("index" = Option<String>, Query, description = "name of the index; defaults to `default`"),
    ),
    responses(
        (status = 200, description = "a page", body = DocumentList),
        (status = 400, description = "the server has no index, or a parameter is invalid", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
    ))]
pub(crate) async fn list(IndexedState(state): IndexedState, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let index = state.library()?.live.current();
    let query = PageQuery::parse(query.as_deref().unwrap_or_default())?;
    run_blocking(move || Ok(axum::Json(page(&index, &query)?).into_response())).await
}

/// Collects one page of documents for `query`.
fn page(index: &Index, query: &PageQuery) -> Result<DocumentList, ApiError> {
    let unknown = || ApiError::invalid("after", "`after` is not the ID of a document: start again without it");
    let mut data = Vec::<DocumentBody>::new();
    let mut bytes = 0;
    // Documents are read one at a time, because each may be large. Reading one more than fits tells whether there are
    // more.
    let has_more = loop {
        let after = data.last().map(|last| last.id.as_str()).or(query.after.as_deref());
        let found = index.documents(after, 1).map_err(|error| broken(&error))?.ok_or_else(unknown)?;
        let Some(document) = found.into_iter().next().map(DocumentBody::from) else { break false };
        bytes += document.bytes();
        // A document larger than a page is a page of its own, or the list would never get past it.
        if data.len() == query.limit || (bytes > PAGE_BYTES && !data.is_empty()) {
            break true;
        }
        data.push(document);
    };
    Ok(DocumentList { object: "list", snapshot: index.manifest().snapshot, data, has_more })
}

impl DocumentBody {
    /// Returns the size of the document as JSON, in bytes.
    fn bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |json| json.len())
    }
}

/// Query parameters of the list route.
struct PageQuery {
    limit: usize,
    after: Option<String>,
}

impl PageQuery {
    fn parse(query: &str) -> Result<PageQuery, ApiError> {
        let mut page = PageQuery { limit: PAGE, after: None };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "after" => page.after = Some(value.into_owned()),
                "limit" => page.limit = limit(&value)?,
                // The extractor `IndexedState` has already used this parameter to choose the index.
                "index" => {}
                name => return Err(ApiError::unknown(name)),
            }
        }
        Ok(page)
    }
}

impl AppState {
    /// Returns the served index.
    ///
    /// # Errors
    /// 400 if the server has no index.
    pub(super) fn library(&self) -> Result<&Library, ApiError> {
        self.library.as_deref().ok_or_else(ApiError::no_index)
    }
}

pub(super) fn absent(id: &str) -> ApiError {
    ApiError::new(Code::DocumentNotFound, format!("the document `{id}` does not exist")).with_param("id")
}

/// Converts an error of reading the index.
pub(super) fn broken(error: &IndexError) -> ApiError {
    ApiError::new(Code::SearchFailed, error.to_string())
}
