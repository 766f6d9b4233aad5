//! `POST /search`: the retriever of RouteRAG (`retrieval_api.py`).

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::{Hit, Mode, Query, Ranking};

use super::{batch, contents};
use crate::agent::routerag;
use crate::api::body::{Json, Wire};
use crate::api::error::{ApiError, ErrorBody, Refusals};
use crate::api::state::AppState;

/// Passages per query when the request does not say: `retrieval_top_k`.
const DEFAULT_K: usize = 200;

/// Queries, as RouteRAG's trainer posts them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteRagRequest {
    /// What to look for. `[passage]` and `[graph]`, anywhere in a query, say how; without either, `[passage]` is meant.
    pub queries: Vec<String>,
    /// Passages per query; 200 when not given, `null` or 0.
    #[schema(maximum = 200)]
    pub topk: Option<usize>,
    /// Whether each document comes with its score.
    pub return_scores: Option<bool>,
    /// Whether `time` is filled.
    pub return_times: Option<bool>,
}

impl Wire for RouteRagRequest {}

/// What was found, one list per query.
#[derive(Debug, Serialize, ToSchema)]
pub struct RouteRagResponse {
    /// Best first.
    pub result: Vec<Vec<Found>>,
    /// Seconds each query took; empty unless `return_times`.
    pub time: Vec<f64>,
}

/// One document found.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Found {
    /// With `return_scores`.
    Scored {
        /// Title, line break, text.
        document: String,
        /// `[passage]`: the inner product with the query, scaled to [0, 1] over all passages. `[graph]`: the passage's
        /// personalised PageRank. Both: the sum of reciprocal ranks.
        score: f32,
    },
    /// Without: the document alone. (The reference answers with empty lists then.)
    Bare(String),
}

/// Finds documents for a batch of queries, as RouteRAG's retrieval API does.
///
/// `[passage]` is dense search, `[graph]` the graph search of RouteRAG's fork of HippoRAG 2, and both together are fused by
/// reciprocal ranks (k = 60) over lists twice as deep as `topk`. A query without text finds nothing.
#[utoipa::path(post, path = "/search", operation_id = "routeRagSearch", tag = "trainers", request_body = RouteRagRequest, responses(
    (status = 200, description = "one list of documents per query", body = RouteRagResponse),
    Refusals,
    (status = 504, description = "a search took too long", body = ErrorBody),
))]
pub(crate) async fn search(
    State(state): State<AppState>,
    Json(request): Json<RouteRagRequest>,
) -> Result<axum::Json<RouteRagResponse>, ApiError> {
    state.searcher()?;
    let k = batch::passages("topk", request.topk, DEFAULT_K)?;
    batch::check("queries", request.queries.len(), k)?;
    let queries = request.queries.iter().map(|written| query(written, k)).collect();
    let found = batch::search(&state, "queries", queries).await?;
    let time = match request.return_times {
        Some(true) => found.iter().map(|found| found.seconds).collect(),
        _ => Vec::new(),
    };
    let scored = request.return_scores.unwrap_or(false);
    let list = |hits: Vec<Hit>| hits.iter().map(|hit| document(hit, scored)).collect();
    let result = found.into_iter().map(|found| list(found.evidence.hits)).collect();
    Ok(axum::Json(RouteRagResponse { result, time }))
}

/// What a written query asks for.
fn query(written: &str, k: usize) -> Query {
    let request = routerag::request(written);
    let query = Query::new(request.query, request.mode.unwrap_or(Mode::Passage), k);
    Query { scaled: true, ..query.ranking(Ranking::Dense) }
}

fn document(hit: &Hit, scored: bool) -> Found {
    let document = contents(&hit.passage);
    if scored { Found::Scored { document, score: hit.score } } else { Found::Bare(document) }
}
