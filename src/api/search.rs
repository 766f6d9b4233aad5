//! `/v1/search`: searches the index without a model.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_agent::{SearchError, SearchQuery};
use waymark_index::{
    AnswerCut, Evidence, GraphTrace, Hit, KagTrace, Mode, Query, SearchField, SearchFields, SearchScope, TripleHit,
    WithSearch,
};

use super::auth::Caller;
use super::body::{JsonBody, WireRequest};
use super::encoding::check_embedded;
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::indexes::IndexOnly;
use super::state::AppState;

/// Search request: a query with search options. Options that the mode does not use are refused. The default is the mode
/// `passage`, with 5 passages.
pub type SearchRequest = WithSearch<SearchQueryField>;

/// Maximum length of a query in bytes. Embedders read no more than a fraction of it, and a query is encoded as a whole.
const MAX_QUERY_BYTES: usize = 64 << 10;

/// Fields of a search request other than its options.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(
    as = SearchRequest,
    description = "Search request. Fields that the mode does not use are refused. By default it finds 5 passages in the mode `passage`."
)]
#[serde(deny_unknown_fields)]
pub struct SearchQueryField {
    /// Query, as plain text.
    pub query: String,
}

impl SearchFields for SearchQueryField {
    const SCOPE: SearchScope = SearchScope::Search;
}

impl WireRequest for SearchRequest {}

/// Search results.
#[derive(Debug, Serialize, ToSchema)]
pub struct SearchResponse {
    /// Always `search`.
    pub object: &'static str,
    /// Query, as searched.
    pub query: String,
    /// Kind of search.
    #[schema(value_type = String)]
    pub mode: Mode,
    /// Snapshot of the index that was searched.
    pub snapshot: u64,
    /// Duration of the search in milliseconds.
    pub milliseconds: f64,
    /// Passages, best first.
    pub hits: Vec<Hit>,
    /// Triples, best first, in modes that return them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<TripleHit>>)]
    pub triples: Vec<TripleHit>,
    /// Last passages and triples, if they were left out because of the size of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<AnswerCut>,
    /// Details of the graph search, if there was one and `explain` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk: Option<GraphTrace>,
    /// Details of the joint ranking in the mode `kag`, if `explain` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub association: Option<KagTrace>,
}

/// Searches the index.
#[utoipa::path(post, path = "/v1/search", operation_id = "search", tag = "retrieval",
    params(("index" = Option<String>, Query, description = "name of the index, or ID of a vector store; defaults to `default`")),
    request_body = SearchRequest, responses(
    (status = 200, description = "the search results", body = SearchResponse),
    Refusals,
    (status = 504, description = "the search took too long", body = ErrorBody),
))]
pub(crate) async fn search(
    IndexOnly(state): IndexOnly,
    caller: Caller,
    JsonBody(request): JsonBody<SearchRequest>,
) -> Result<axum::Json<SearchResponse>, ApiError> {
    find(&state, &caller, request).await.map(axum::Json)
}

/// Searches the index. Used by several routes.
pub(super) async fn find(
    state: &AppState,
    caller: &Caller,
    request: SearchRequest,
) -> Result<SearchResponse, ApiError> {
    // A server without an index says so before it looks at the query.
    state.searcher()?;
    let query = checked(&request)?;
    let started = Instant::now();
    let limit = state.config.answer_bytes;
    let mut evidence = state.search(caller, query.bytes(limit)).await?;
    let milliseconds = started.elapsed().as_secs_f64() * 1e3;
    if request.search.explain != Some(true) {
        (evidence.walk, evidence.association) = (None, None);
    }
    let cut = AnswerCut::of(evidence.left_out, limit);
    let Evidence { snapshot, mode, hits, triples, walk, association, .. } = evidence;
    let query = request.rest.query;
    let object = "search";
    Ok(SearchResponse { object, query, mode, snapshot, milliseconds, hits, triples, cut, walk, association })
}

impl AppState {
    /// Searches for a client, and counts the search in the metrics.
    ///
    /// # Errors
    /// 400 if the server has no index or the index does not support the mode; 500, 503 or 504 if the search failed.
    pub(super) async fn search(&self, caller: &Caller, query: Query) -> Result<Evidence, ApiError> {
        check_embedded("query", query.text.len(), MAX_QUERY_BYTES)?;
        let searcher = self.searcher()?;
        let started = Instant::now();
        let query = query.cache_salt(caller.salt);
        let query = SearchQuery { tenant: caller.tenant(), ..SearchQuery::from(query) };
        let found = searcher.search(query).await.map_err(ApiError::from);
        // A refused query is the client's mistake, not a failure of the search.
        let failed = found.as_ref().is_err_and(|error| error.code.status().is_server_error());
        self.metrics.client_searched(started.elapsed(), failed);
        found
    }
}

/// Validates a request and converts it to a query.
fn checked(request: &SearchRequest) -> Result<Query, ApiError> {
    let WithSearch { search, rest: SearchQueryField { query } } = request;
    if query.trim().is_empty() {
        return Err(ApiError::invalid("query", "`query` is empty"));
    }
    search.check().map_err(|invalid| ApiError::invalid(invalid.name, invalid.to_string()))?;
    match search.unused(search.mode()) {
        Some((SearchField { name, .. }, reason)) => Err(ApiError::invalid(name, format!("`{name}` {reason}"))),
        None => Ok(search.query(query.as_str())),
    }
}

impl From<SearchError> for ApiError {
    fn from(error: SearchError) -> Self {
        let message = error.to_string();
        match error {
            SearchError::Busy => Self::new(Code::QueueFull, message),
            SearchError::Timeout => Self::new(Code::SearchTimeout, "the search took too long"),
            SearchError::Unsupported(_) => Self::new(Code::UnsupportedParameter, message).with_param("mode"),
            SearchError::NoReranker => Self::new(Code::NotConfigured, message).with_param("rerank"),
            SearchError::Failed(_) => Self::new(Code::SearchFailed, format!("the search failed: {message}")),
        }
    }
}
