//! `POST /retrieve`: the retrieval interface of Search-R1 (`search_r1/search/retrieval_server.py`), and of SkyRL's
//! search tool, which sends one `query`.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::{AnswerCut, Hit, Passage, Query, Ranking, SearchOptions};

use super::batch::{self, BatchResult};
use super::batch_answer::BatchAnswer;
use crate::api::auth::Caller;
use crate::api::body::{JsonBody, WireRequest};
use crate::api::error::{ApiError, ErrorBody, Refusals};
use crate::api::indexes::CallerState;

/// Default number of passages per query: the default of `--topk` in Search-R1's server.
const DEFAULT_K: usize = 3;

/// Queries, in the format of Search-R1's trainer or of SkyRL's search tool.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrieveRequest {
    /// Queries. Required unless `query` is given.
    pub queries: Option<Vec<String>>,
    /// One query, instead of `queries`.
    pub query: Option<String>,
    /// Number of passages per query. Absent, `null` and 0 mean 3.
    #[schema(maximum = 200)]
    pub topk: Option<usize>,
    /// If `true`, each document comes with its score.
    pub return_scores: Option<bool>,
}

impl WireRequest for RetrieveRequest {}

/// Returns the queries of a request.
///
/// # Errors
/// If there are none, or both forms are given.
fn queries(request: &mut RetrieveRequest) -> Result<Vec<String>, ApiError> {
    match (request.queries.take(), request.query.take()) {
        (Some(queries), None) => Ok(queries),
        (None, Some(query)) => Ok(vec![query]),
        (None, None) => {
            let message = "`queries` is missing: send a list of queries, or one query as `query`";
            Err(ApiError::invalid("queries", message))
        }
        (Some(_), Some(_)) => {
            Err(ApiError::invalid("query", "`query` and `queries` are both given; send one of the two"))
        }
    }
}

/// Results, one list per query.
#[derive(Debug, Serialize, ToSchema)]
pub struct RetrieveResponse {
    /// Documents, best first.
    pub result: Vec<Vec<RetrievedDocument>>,
    /// Queries left out because of the size of the answer, if there are any; their results are empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<AnswerCut>,
}

/// Retrieved document.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Retrieved)]
#[serde(untagged)]
pub enum RetrievedDocument {
    /// Document with its score, if `return_scores` is set.
    Scored {
        /// Document.
        document: WikiDocument,
        /// Inner product of the document and the query.
        score: f32,
    },
    /// Document alone, if `return_scores` is not set.
    Bare(WikiDocument),
}

/// Document in the format of the wiki-18 corpus.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Document)]
pub struct WikiDocument {
    /// ID of the document in the corpus.
    pub id: String,
    /// Title in double quotes, line break, text.
    pub contents: String,
}

/// Finds documents for a batch of queries, as Search-R1's retrieval server does, or for the one query of SkyRL's tool.
///
/// Uses dense search; scores are inner products of unit vectors. A query without text finds nothing.
#[utoipa::path(post, path = "/retrieve", operation_id = "retrieve", tag = "trainers", request_body = RetrieveRequest, responses(
    (status = 200, description = "one list of documents per query", body = RetrieveResponse),
    Refusals,
    (status = 504, description = "a search took too long", body = ErrorBody),
))]
pub(crate) async fn retrieve(
    CallerState(state): CallerState,
    caller: Caller,
    JsonBody(mut request): JsonBody<RetrieveRequest>,
) -> Result<Response, ApiError> {
    state.searcher()?;
    let texts = queries(&mut request)?;
    let k = batch::passages("topk", request.topk, DEFAULT_K)?;
    batch::check("queries", texts.len(), k)?;
    let search = SearchOptions { k: Some(k), ranking: Some(Ranking::Dense), ..SearchOptions::default() };
    let queries: Vec<Query> = texts.iter().map(|text| search.query(text.trim())).collect();
    let scored = request.return_scores.unwrap_or(false);
    let list = move |found: BatchResult| -> Vec<RetrievedDocument> {
        found.evidence.hits.into_iter().map(|hit| retrieved(hit, scored)).collect()
    };
    let limit = state.config.answer_bytes;
    let answer = BatchAnswer { item: list, empty: "[]", queries: queries.len(), times: None, limit };
    answer.respond(batch::search(&state, caller, "queries", queries)).await
}

fn retrieved(hit: Hit, scored: bool) -> RetrievedDocument {
    let Passage { id, title, text } = hit.passage;
    // In wiki-18 the title stands in quotation marks.
    let document = WikiDocument { id, contents: format!("\"{title}\"\n{text}") };
    if scored { RetrievedDocument::Scored { document, score: hit.score } } else { RetrievedDocument::Bare(document) }
}
