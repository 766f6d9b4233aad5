//! `POST /search`: the retrieval interface of RouteRAG (`retrieval_api.py`).

use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_agent::routerag;
use waymark_index::{AnswerCut, Hit, Query, Ranking, SearchOptions};

use super::batch::{self, BatchResult};
use super::batch_answer::BatchAnswer;
use super::contents;
use crate::api::auth::Caller;
use crate::api::body::{JsonBody, WireRequest};
use crate::api::error::{ApiError, ErrorBody, Refusals};
use crate::api::indexes::CallerState;

/// Default number of passages per query: `retrieval_top_k` in RouteRAG.
const DEFAULT_K: usize = 200;

/// Queries, in the format of RouteRAG's trainer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteRagRequest {
    /// Queries. `[passage]` and `[graph]`, anywhere in a query, select the kind of search; the default is `[passage]`.
    pub queries: Vec<String>,
    /// Number of passages per query. Absent, `null` and 0 mean 200.
    #[schema(maximum = 200)]
    pub topk: Option<usize>,
    /// If `true`, each document comes with its score.
    pub return_scores: Option<bool>,
    /// If `true`, `time` is filled.
    pub return_times: Option<bool>,
}

impl WireRequest for RouteRagRequest {}

/// Results, one list per query.
#[derive(Debug, Serialize, ToSchema)]
pub struct RouteRagResponse {
    /// Documents, best first.
    pub result: Vec<Vec<FoundDocument>>,
    /// Duration of each query in seconds. Empty unless `return_times` is set.
    pub time: Vec<f64>,
    /// Queries left out because of the size of the answer, if there are any; their results are empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<AnswerCut>,
}

/// Retrieved document.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Found)]
#[serde(untagged)]
pub enum FoundDocument {
    /// Document with its score, if `return_scores` is set.
    Scored {
        /// Title, line break, text.
        document: String,
        /// Score. For `[passage]` the inner product with the query, scaled to [0, 1] over all passages; for `[graph]`
        /// the passage's personalized PageRank; for both the sum of reciprocal ranks.
        score: f32,
    },
    /// Document alone, if `return_scores` is not set. (The reference returns empty lists in this case.)
    Bare(String),
}

/// Finds documents for a batch of queries, as RouteRAG's retrieval API does.
///
/// `[passage]` is dense search, `[graph]` the graph search of RouteRAG's fork of HippoRAG 2. With both, the two lists
/// are fused by reciprocal rank (k = 60), each twice as long as `topk`. A query without text finds nothing.
#[utoipa::path(post, path = "/search", operation_id = "routeRagSearch", tag = "trainers", request_body = RouteRagRequest, responses(
    (status = 200, description = "one list of documents per query", body = RouteRagResponse),
    Refusals,
    (status = 504, description = "a search took too long", body = ErrorBody),
))]
pub(crate) async fn search(
    CallerState(state): CallerState,
    caller: Caller,
    JsonBody(request): JsonBody<RouteRagRequest>,
) -> Result<Response, ApiError> {
    state.searcher()?;
    let k = batch::passages("topk", request.topk, DEFAULT_K)?;
    batch::check("queries", request.queries.len(), k)?;
    let queries: Vec<Query> = request.queries.iter().map(|written| query(written, k)).collect();
    let scored = request.return_scores.unwrap_or(false);
    let list = move |found: BatchResult| -> Vec<FoundDocument> {
        found.evidence.hits.iter().map(|hit| document(hit, scored)).collect()
    };
    let times = Some(request.return_times.unwrap_or(false));
    let limit = state.config.answer_bytes;
    let answer = BatchAnswer { item: list, empty: "[]", queries: queries.len(), times, limit };
    answer.respond(batch::search(&state, caller, "queries", queries)).await
}

/// Parses a query with its mode tags.
fn query(written: &str, k: usize) -> Query {
    let request = routerag::request(written);
    let ranking = Some(Ranking::Dense);
    let search = SearchOptions { mode: request.mode, k: Some(k), ranking, ..SearchOptions::default() };
    // RouteRAG scales dense scores to [0, 1] over all passages.
    Query { scaled: true, ..search.query(request.query) }
}

fn document(hit: &Hit, scored: bool) -> FoundDocument {
    let document = contents(&hit.passage);
    if scored { FoundDocument::Scored { document, score: hit.score } } else { FoundDocument::Bare(document) }
}
