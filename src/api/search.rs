//! `/v1/search`: evidence without a model.

use std::time::Instant;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::{Hit, Mode, Ranking};

use super::body::{Json, Wire};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::state::AppState;
use crate::agent::{SearchError, SearchQuery};

/// Most passages one search returns.
pub(crate) const MAX_K: usize = 50;

/// Passages returned when the request does not say.
const DEFAULT_K: usize = 5;

/// A search.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// What to look for, as plain text.
    pub query: String,
    /// `passage` (when not given), `graph` or `hybrid`.
    #[schema(value_type = Option<String>)]
    pub mode: Option<Mode>,
    /// How passages are ranked: `fused` (when not given), `dense` or `bm25`.
    #[schema(value_type = Option<String>)]
    pub ranking: Option<Ranking>,
    /// How many passages to return; 5 when not given.
    #[schema(minimum = 1, maximum = 50)]
    pub k: Option<usize>,
}

impl Wire for SearchRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[];
}

/// What was found.
#[derive(Debug, Serialize, ToSchema)]
pub struct SearchResponse {
    /// Always `search`.
    pub object: &'static str,
    /// What was looked for.
    pub query: String,
    /// How.
    #[schema(value_type = String)]
    pub mode: Mode,
    /// The state of the index that was searched.
    pub snapshot: u64,
    /// How long it took.
    pub milliseconds: f64,
    /// Best first.
    #[schema(value_type = Vec<schema::Hit>)]
    pub hits: Vec<Hit>,
}

/// Searches the index.
#[utoipa::path(post, path = "/v1/search", operation_id = "search", tag = "retrieval", request_body = SearchRequest, responses(
    (status = 200, description = "what was found", body = SearchResponse),
    Refusals,
    (status = 504, description = "the search took too long", body = ErrorBody),
))]
pub(crate) async fn search(
    State(state): State<AppState>,
    Json(request): Json<SearchRequest>,
) -> Result<axum::Json<SearchResponse>, ApiError> {
    let Some(searcher) = &state.runtime.searcher else {
        return Err(ApiError::new(Code::NotConfigured, "this server has no index: start it with `--index`"));
    };
    if request.query.trim().is_empty() {
        return Err(ApiError::invalid("query", "`query` is empty"));
    }
    let k = request.k.unwrap_or(DEFAULT_K);
    check_k("k", k)?;
    let mut query = SearchQuery::new(request.query.as_str(), request.mode.unwrap_or_default(), k);
    query.ranking = request.ranking.unwrap_or_default();
    let begun = Instant::now();
    let evidence = searcher.search(query).await?;
    Ok(axum::Json(SearchResponse {
        object: "search",
        query: request.query,
        mode: evidence.mode,
        snapshot: evidence.snapshot,
        milliseconds: begun.elapsed().as_secs_f64() * 1e3,
        hits: evidence.hits,
    }))
}

/// Refuses a number of passages that is none, or too many.
pub(crate) fn check_k(param: &str, k: usize) -> Result<(), ApiError> {
    if (1..=MAX_K).contains(&k) {
        return Ok(());
    }
    Err(ApiError::invalid(param, format!("`{param}` must be from 1 to {MAX_K}, not {k}")))
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

/// The shapes of the index's own types, which know no schema.
pub(crate) mod schema {
    use utoipa::ToSchema;

    /// One passage found.
    #[derive(Debug, ToSchema)]
    #[expect(dead_code, reason = "only its shape is used")]
    pub(crate) struct Hit {
        /// Place in the list, from 1.
        rank: usize,
        /// What the list is ordered by.
        score: f32,
        /// The passage.
        passage: Passage,
        /// How it was found.
        path: EvidencePath,
    }

    /// A passage.
    #[derive(Debug, ToSchema)]
    #[expect(dead_code, reason = "only its shape is used")]
    pub(crate) struct Passage {
        /// The id that the corpus gave it.
        id: String,
        /// Its title; may be empty.
        title: String,
        /// Its text.
        text: String,
    }

    /// How a passage was found: its place in each list that held it.
    #[derive(Debug, ToSchema)]
    #[expect(dead_code, reason = "only its shape is used")]
    pub(crate) struct EvidencePath {
        /// Its place in the BM25 list.
        bm25: Option<Place>,
        /// Its place in the dense list.
        dense: Option<Place>,
    }

    /// A place in a ranked list.
    #[derive(Debug, ToSchema)]
    #[expect(dead_code, reason = "only its shape is used")]
    pub(crate) struct Place {
        /// From 1.
        rank: usize,
        /// In the units of that list.
        score: f32,
    }
}
