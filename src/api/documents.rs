//! `/v1/documents`: what the index holds, and changing it while it is searched.

use std::time::Instant;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use waymark_index::{Changes, CommitReport, Document, Index, IndexError, Triple};

use super::auth::Caller;
use super::beside::beside;
use super::body::{Json, Wire};
use super::commits::{self, CommitStatus};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::library::Library;
use super::page::{PAGE, limit};
use super::state::AppState;

/// Bytes after which a page takes no other document.
const PAGE_BYTES: usize = 8 << 20;

/// A document of the index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentBody {
    /// Names it: a document with the same id takes its place.
    pub id: String,
    /// Its title; may be empty.
    #[serde(default)]
    pub title: String,
    /// The passage.
    pub text: String,
    /// What it states, as `[subject, relation, object]`. When not given, the extractor of the index is asked, if the
    /// index has a graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Vec<String>>>)]
    pub triples: Option<Vec<Triple>>,
    /// Whatever else there is to say about it; kept, not searched.
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

/// Documents to add, or to put in the place of those with their ids, and ids of documents to remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpsertRequest {
    /// The documents; of one id at most one. All of them go in at once, or none.
    pub documents: Vec<DocumentBody>,
    /// Ids of documents to remove, none of which is put in. Those that are not there are passed over and counted.
    #[serde(default)]
    pub delete: Vec<String>,
    /// Whether to answer when the change is made, which it is when not given. With `false` the answer is its id, at once.
    pub wait: Option<bool>,
}

impl Wire for UpsertRequest {}

/// What a change did.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CommitResponse {
    /// Always `documents.commit`.
    pub object: &'static str,
    /// The state of the index with the change made. Searches that begin from now on are made in this one or a later one.
    pub snapshot: u64,
    /// Whether it is a new one. It is not where nothing had to be changed.
    pub published: bool,
    /// Documents that were added.
    pub added: u64,
    /// Documents that took the place of another.
    pub replaced: u64,
    /// Documents that were there already, the same in every field.
    pub unchanged: u64,
    /// Documents that were removed.
    pub removed: u64,
    /// Documents to be removed that were not there.
    pub absent: u64,
    /// Documents that came and are longer than the embedder reads. Dense search sees only their beginning.
    pub cut: u64,
    /// Documents that the index holds now.
    pub documents: u64,
    /// How long it took, waiting for other changes included.
    pub milliseconds: f64,
}

/// A document and the state of the index it was found in.
#[derive(Debug, Serialize, ToSchema)]
pub struct DocumentResponse {
    /// Always `document`.
    pub object: &'static str,
    /// The state of the index.
    pub snapshot: u64,
    /// The document, with the triples it was given.
    pub document: DocumentBody,
}

/// A page of documents.
#[derive(Debug, Serialize, ToSchema)]
pub struct DocumentList {
    /// Always `list`.
    pub object: &'static str,
    /// The state of the index.
    pub snapshot: u64,
    /// The documents in the order of the index.
    pub data: Vec<DocumentBody>,
    /// Whether there are more: ask again with `after` set to the id of the last one.
    pub has_more: bool,
}

/// Adds documents, or puts them in the place of those with their ids, and removes others.
///
/// Searches go on meanwhile, each in the state of the index it began in. Changes of the same document are made one after the
/// other; those of different documents that wait meanwhile are made together, and each is told what it did itself.
#[utoipa::path(post, path = "/v1/documents", operation_id = "upsertDocuments", tag = "documents", request_body = UpsertRequest, responses(
    (status = 200, description = "the change was made", body = CommitResponse),
    (status = 202, description = "the change will be made, and was not waited for", body = CommitStatus),
    (status = 403, description = "the server only reads its index", body = ErrorBody),
    (status = 409, description = "another process is writing to the index", body = ErrorBody),
    Refusals,
))]
pub(crate) async fn upsert(
    State(state): State<AppState>,
    caller: Caller,
    Json(request): Json<UpsertRequest>,
) -> Result<Response, ApiError> {
    let UpsertRequest { documents, delete, wait } = request;
    let changes = Changes { delete, ..Changes::upsert(documents.into_iter().map(Document::from)) };
    if wait == Some(false) {
        return commits::start(&state, &caller, changes);
    }
    let made = state.library()?.enter(changes, &caller, &state.metrics.index, &state.drain)?.over().await?;
    Ok(axum::Json(made).into_response())
}

/// Removes a document. Its id may hold slashes, written as `/` or `%2F`.
#[utoipa::path(delete, path = "/v1/documents/{*id}", operation_id = "deleteDocument", tag = "documents",
    params(("id" = String, Path, description = "the document's id")),
    responses(
        (status = 200, description = "it is gone", body = CommitResponse),
        (status = 403, description = "the server only reads its index", body = ErrorBody),
        (status = 409, description = "another process is writing to the index", body = ErrorBody),
        Refusals,
    ))]
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<axum::Json<CommitResponse>, ApiError> {
    let (library, id) = (state.library()?, known(id)?);
    let changes = Changes::delete([id.clone()]);
    let made = library.enter(changes, &caller, &state.metrics.index, &state.drain)?.over().await?;
    if made.absent > 0 { Err(absent(&id)) } else { Ok(axum::Json(made)) }
}

/// One document. Its id may hold slashes, written as `/` or `%2F`.
#[utoipa::path(get, path = "/v1/documents/{*id}", operation_id = "retrieveDocument", tag = "documents",
    params(("id" = String, Path, description = "the document's id")),
    responses(
        (status = 200, description = "the document", body = DocumentResponse),
        (status = 400, description = "the server has no index", body = ErrorBody),
        (status = 404, description = "no such document", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(state): State<AppState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<axum::Json<DocumentResponse>, ApiError> {
    let (index, id) = (state.library()?.live.current(), known(id)?);
    let document = index.passage(&id).map_err(|error| broken(&error))?.ok_or_else(|| absent(&id))?;
    let snapshot = index.manifest().snapshot;
    Ok(axum::Json(DocumentResponse { object: "document", snapshot, document: document.into() }))
}

/// The documents, page by page.
///
/// A page ends early where its documents take more than 8 MiB; `has_more` alone says whether it is the last one.
#[utoipa::path(get, path = "/v1/documents", operation_id = "listDocuments", tag = "documents",
    params(
        ("limit" = Option<usize>, Query, description = "most documents of a page, from 1 to 100; 20 when not given"),
        ("after" = Option<String>, Query, description = "the id of the last document of the page before"),
    ),
    responses(
        (status = 200, description = "a page", body = DocumentList),
        (status = 400, description = "the server has no index, or a parameter makes no sense", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
    ))]
pub(crate) async fn list(State(state): State<AppState>, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let index = state.library()?.live.current();
    let query = PageQuery::parse(query.as_deref().unwrap_or_default())?;
    beside(move || Ok(axum::Json(page(&index, &query)?).into_response())).await
}

/// The documents that `query` asks for, and no more of them than a page takes.
fn page(index: &Index, query: &PageQuery) -> Result<DocumentList, ApiError> {
    let unknown = || ApiError::invalid("after", "`after` is not the id of a document: begin again without it");
    let (mut data, mut bytes) = (Vec::<DocumentBody>::new(), 0);
    // One at a time, for each may be large; one more than is shown says whether there are more.
    let has_more = loop {
        let after = data.last().map(|last| last.id.as_str()).or(query.after.as_deref());
        let found = index.documents(after, 1).map_err(|error| broken(&error))?.ok_or_else(unknown)?;
        let Some(document) = found.into_iter().next().map(DocumentBody::from) else { break false };
        bytes += document.bytes();
        if data.len() == query.limit || (bytes > PAGE_BYTES && !data.is_empty()) {
            break true;
        }
        data.push(document);
    };
    Ok(DocumentList { object: "list", snapshot: index.manifest().snapshot, data, has_more })
}

impl DocumentBody {
    /// How many bytes it is over the wire.
    fn bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |json| json.len())
    }
}

/// What stands behind the `?` of a list.
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
                name => return Err(ApiError::unknown(name)),
            }
        }
        Ok(page)
    }
}

impl CommitResponse {
    /// What is told of a change that came at `begun`.
    pub(super) fn of(report: &CommitReport, begun: Instant) -> CommitResponse {
        CommitResponse {
            object: "documents.commit",
            snapshot: report.manifest.snapshot,
            published: report.published,
            added: report.added,
            replaced: report.replaced,
            unchanged: report.unchanged,
            removed: report.removed,
            absent: report.absent.len() as u64,
            cut: report.cut,
            documents: report.manifest.passages,
            milliseconds: begun.elapsed().as_secs_f64() * 1e3,
        }
    }
}

impl AppState {
    /// The documents of the index.
    ///
    /// # Errors
    /// 400 when the server has no index.
    pub(super) fn library(&self) -> Result<&Library, ApiError> {
        self.library.as_deref().ok_or_else(ApiError::no_index)
    }
}

/// An id that is no UTF-8 is nobody's.
fn known(id: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::new(Code::DocumentNotFound, error.body_text()).with_param("id"))?;
    Ok(id)
}

fn absent(id: &str) -> ApiError {
    ApiError::new(Code::DocumentNotFound, format!("the document `{id}` does not exist")).with_param("id")
}

fn broken(error: &IndexError) -> ApiError {
    ApiError::new(Code::SearchFailed, error.to_string())
}
