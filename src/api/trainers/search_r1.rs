//! `POST /retrieve`: the retriever of Search-R1 (`search_r1/search/retrieval_server.py`).

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::{Hit, Mode, Passage, Query, Ranking};

use super::batch;
use crate::api::body::{Json, Wire};
use crate::api::error::{ApiError, ErrorBody, Refusals};
use crate::api::state::AppState;

/// Passages per query when the request does not say: the default of its server's `--topk`.
const DEFAULT_K: usize = 3;

/// Queries, as Search-R1's trainer posts them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrieveRequest {
    /// What to look for.
    pub queries: Vec<String>,
    /// Passages per query; 3 when not given, `null` or 0.
    #[schema(maximum = 200)]
    pub topk: Option<usize>,
    /// Whether each document comes with its score.
    pub return_scores: Option<bool>,
}

impl Wire for RetrieveRequest {}

/// What was found, one list per query.
#[derive(Debug, Serialize, ToSchema)]
pub struct RetrieveResponse {
    /// Best first.
    pub result: Vec<Vec<Retrieved>>,
}

/// One document found.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Retrieved {
    /// With `return_scores`.
    Scored {
        /// The document.
        document: Document,
        /// Its inner product with the query.
        score: f32,
    },
    /// Without.
    Bare(Document),
}

/// A document as a line of the wiki-18 corpus has it.
#[derive(Debug, Serialize, ToSchema)]
pub struct Document {
    /// The id that the corpus gave it.
    pub id: String,
    /// The title in double quotes, a line break, the text.
    pub contents: String,
}

/// Finds documents for a batch of queries, as Search-R1's retrieval server does.
///
/// Dense search; scores are the inner products of unit vectors. A query without text finds nothing.
#[utoipa::path(post, path = "/retrieve", operation_id = "retrieve", tag = "trainers", request_body = RetrieveRequest, responses(
    (status = 200, description = "one list of documents per query", body = RetrieveResponse),
    Refusals,
    (status = 504, description = "a search took too long", body = ErrorBody),
))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    Json(request): Json<RetrieveRequest>,
) -> Result<axum::Json<RetrieveResponse>, ApiError> {
    state.searcher()?;
    let k = batch::passages("topk", request.topk, DEFAULT_K)?;
    batch::check("queries", request.queries.len(), k)?;
    let query = |text: String| Query::new(text.trim(), Mode::Passage, k).ranking(Ranking::Dense);
    let found = batch::search(&state, "queries", request.queries.into_iter().map(query).collect()).await?;
    let scored = request.return_scores.unwrap_or(false);
    let list = |hits: Vec<Hit>| hits.into_iter().map(|hit| retrieved(hit, scored)).collect();
    Ok(axum::Json(RetrieveResponse { result: found.into_iter().map(|found| list(found.evidence.hits)).collect() }))
}

fn retrieved(hit: Hit, scored: bool) -> Retrieved {
    let Passage { id, title, text } = hit.passage;
    let document = Document { id, contents: format!("\"{title}\"\n{text}") };
    if scored { Retrieved::Scored { document, score: hit.score } } else { Retrieved::Bare(document) }
}
