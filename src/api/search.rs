//! `/v1/search`: searches the index without a model.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_agent::{MAX_K, QueryField, SearchError};
use waymark_index::{
    Condition, ENTITIES, Evidence, GraphOptions, GraphTrace, GraphVariant, Hit, IndexError, KagOptions, KagTrace, Mode,
    Query, Ranking, TRIPLES, TripleHit,
};

use super::body::{JsonBody, WireRequest, within};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::schema;
use super::state::AppState;

/// Default number of passages.
const DEFAULT_K: usize = 5;

/// Search request. Fields that the mode does not use are refused.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// Query, as plain text.
    pub query: String,
    /// Kind of search: `passage` (the default), `graph`, `hybrid`, `triples` or `kag`. All but `passage` need an index
    /// with a graph.
    #[schema(value_type = Option<String>)]
    pub mode: Option<Mode>,
    /// Ranking of passages in the modes `passage` and `hybrid`: `fused`, `dense` or `bm25`.
    #[schema(value_type = Option<String>)]
    pub ranking: Option<Ranking>,
    /// Number of passages to return; defaults to 5.
    #[schema(minimum = 1, maximum = 200)]
    pub k: Option<usize>,
    /// Number of triples to return in the mode `triples`; defaults to 10.
    #[schema(minimum = 0, maximum = 200)]
    pub triples: Option<usize>,
    /// Names of entities in the query, for the mode `kag`.
    #[schema(max_items = 8)]
    pub entities: Option<Vec<String>>,
    /// Options of graph search, in the modes `graph`, `hybrid` and `triples`.
    pub graph: Option<GraphRequest>,
    /// Options of the joint ranking of passages and triples in the mode `kag`, where `k` counts both.
    #[schema(value_type = Option<schema::KagOptionsSchema>)]
    pub kag: Option<KagOptions>,
    /// Condition on the metadata of documents; only matching documents are found. Graph search still walks the whole
    /// graph and drops other passages at the end.
    #[schema(value_type = Option<schema::ConditionSchema>)]
    pub filters: Option<Condition>,
    /// If `true`, returns details of the graph search (`walk`) and the path to each passage (`via`).
    pub explain: Option<bool>,
}

/// Options of graph search.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GraphRequest {
    /// Algorithm: `route_rag` (the default), `hippo_rag` or `graph_r1`. Options below that are absent have the values
    /// published with the algorithm.
    #[schema(value_type = Option<String>)]
    pub variant: Option<GraphVariant>,
    /// Number of facts linked to the query, and of phrases the walk starts from.
    #[schema(minimum = 1, maximum = 100)]
    pub linking_top_k: Option<usize>,
    /// Probability of following an edge instead of restarting.
    #[schema(minimum = 0, maximum = 0.95)]
    pub damping: Option<f64>,
    /// Weight of the passages' own similarity in the restart distribution.
    #[schema(minimum = 0, maximum = 1)]
    pub passage_weight: Option<f64>,
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
    #[schema(value_type = Vec<schema::HitSchema>)]
    pub hits: Vec<Hit>,
    /// Triples, best first, in modes that return them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<schema::TripleHitSchema>>)]
    pub triples: Vec<TripleHit>,
    /// Details of the graph search, if there was one and `explain` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::WalkSchema>)]
    pub walk: Option<GraphTrace>,
    /// Details of the joint ranking in the mode `kag`, if `explain` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::AssociatedSchema>)]
    pub association: Option<KagTrace>,
}

/// Searches the index.
#[utoipa::path(post, path = "/v1/search", operation_id = "search", tag = "retrieval", request_body = SearchRequest, responses(
    (status = 200, description = "the search results", body = SearchResponse),
    Refusals,
    (status = 504, description = "the search took too long", body = ErrorBody),
))]
pub(crate) async fn search(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<SearchRequest>,
) -> Result<axum::Json<SearchResponse>, ApiError> {
    find(&state, request).await.map(axum::Json)
}

/// Searches the index. Used by several routes.
pub(super) async fn find(state: &AppState, request: SearchRequest) -> Result<SearchResponse, ApiError> {
    state.searcher()?;
    let query = request.query()?;
    let begun = Instant::now();
    let mut evidence = state.search(query).await?;
    let milliseconds = begun.elapsed().as_secs_f64() * 1e3;
    if request.explain != Some(true) {
        (evidence.walk, evidence.association) = (None, None);
    }
    let Evidence { snapshot, mode, hits, triples, walk, association } = evidence;
    let query = request.query;
    let object = "search";
    Ok(SearchResponse { object, query, mode, snapshot, milliseconds, hits, triples, walk, association })
}

impl AppState {
    /// Searches for a client, and counts the search in the metrics.
    ///
    /// # Errors
    /// 400 if the server has no index or the index does not support the mode; 500, 503 or 504 if the search failed.
    pub(super) async fn search(&self, query: Query) -> Result<Evidence, ApiError> {
        let searcher = self.searcher()?;
        let begun = Instant::now();
        let found = searcher.search(query.into()).await.map_err(ApiError::from);
        let failed = found.as_ref().is_err_and(|error| error.code.status().is_server_error());
        self.metrics.client_searched(begun.elapsed(), failed);
        found
    }
}

impl SearchRequest {
    /// Validates the request and converts it to a query.
    fn query(&self) -> Result<Query, ApiError> {
        if self.query.trim().is_empty() {
            return Err(ApiError::invalid("query", "`query` is empty"));
        }
        let mode = self.mode.unwrap_or_default();
        let k = within("k", self.k, 1, MAX_K)?.unwrap_or(DEFAULT_K);
        let triples = within("triples", self.triples, 0, MAX_K)?.unwrap_or(TRIPLES);
        let entities = self.entities.clone().unwrap_or_default();
        if entities.len() > ENTITIES {
            let message = format!("`entities` holds {} names, {ENTITIES} at most", entities.len());
            return Err(ApiError::invalid("entities", message));
        }
        let kag = self.kag.unwrap_or_default();
        kag.check().map_err(|message| ApiError::invalid("kag", format!("`kag` {message}")))?;
        let graph = self.graph.unwrap_or_default().options()?;
        self.check_read(mode)?;
        Ok(Query {
            ranking: self.ranking.unwrap_or(mode.ranking()),
            triples,
            graph,
            entities,
            kag,
            explain: self.explain == Some(true),
            only: self.filters.clone().map(Arc::new),
            ..Query::new(self.query.as_str(), mode, k)
        })
    }

    /// Refuses fields that a search in `mode` would ignore.
    fn check_read(&self, mode: Mode) -> Result<(), ApiError> {
        let given = [
            ("ranking", QueryField::Ranking, self.ranking.is_some()),
            ("graph", QueryField::Graph, self.graph.is_some()),
            ("triples", QueryField::Triples, self.triples.is_some()),
            ("entities", QueryField::Entities, self.entities.is_some()),
            ("kag", QueryField::Kag, self.kag.is_some()),
        ];
        for (name, part, _) in given.into_iter().filter(|(.., given)| *given) {
            if let Some(reason) = part.unused_reason(mode) {
                return Err(ApiError::invalid(name, format!("`{name}` {reason}")));
            }
        }
        Ok(())
    }
}

impl GraphRequest {
    /// Returns the variant's options, overridden by those of the request.
    fn options(&self) -> Result<GraphOptions, ApiError> {
        let own = GraphOptions::from(self.variant.unwrap_or_default());
        let options = GraphOptions {
            variant: own.variant,
            linking_top_k: self.linking_top_k.unwrap_or(own.linking_top_k),
            damping: self.damping.unwrap_or(own.damping),
            passage_weight: self.passage_weight.unwrap_or(own.passage_weight),
        };
        options.check().map_err(|error| match error {
            IndexError::BadQuery { field, message } => {
                let param = format!("graph.{field}");
                ApiError::invalid(&param, format!("`{param}` {message}"))
            }
            error => ApiError::invalid("graph", error.to_string()),
        })?;
        Ok(options)
    }
}

impl From<SearchError> for ApiError {
    fn from(error: SearchError) -> Self {
        let message = error.to_string();
        match error {
            SearchError::Busy => Self::new(Code::QueueFull, message),
            SearchError::Timeout => Self::new(Code::SearchTimeout, "the search took too long"),
            SearchError::Unsupported(_) => Self::new(Code::UnsupportedParameter, message).with_param("mode"),
            SearchError::Failed(_) => Self::new(Code::SearchFailed, format!("the search failed: {message}")),
        }
    }
}
