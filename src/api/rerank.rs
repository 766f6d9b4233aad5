//! `/v1/rerank`: the interface of Cohere and Jina to the reranker of the searches.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::{Rerank, RerankError, RerankScore};
use waymark_runtime::reranking::Reranking;

use super::auth::Caller;
use super::blocking::run_blocking;
use super::body::{JsonBody, WireRequest};
use super::encoder_queue::EncoderQueue;
use super::encoding::check_embedded;
use super::error::{ApiError, Code, Refusals};
use super::error_mapping::encoder_error;
use super::state::AppState;

/// Maximum number of documents per request, as Cohere recommends.
const MAX_DOCUMENTS: usize = 1000;

/// Maximum length of the query and of a document in bytes. Rerankers read no more than a fraction of it.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// Number of documents scored at a time. If the client disconnects, the remaining chunks are skipped.
const CHUNK: usize = 32;

/// Reranker and the name under which it is served.
#[derive(Debug)]
pub struct ServedReranker {
    /// Name to use in `model`; the reranker's own ID is accepted as well.
    pub name: String,
    /// Reranker.
    pub reranker: Arc<Reranking>,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Queue in front of the reranker.
    pub(crate) queue: EncoderQueue,
}

/// Request to order documents by their relevance for a query.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RerankRequest {
    /// Name of the reranker in `/v1/models`, or its ID.
    pub model: String,
    /// Query, as plain text.
    pub query: String,
    /// Documents to order: at most 1,000. What the reranker does not read of a long document does not count.
    pub documents: Vec<DocumentInput>,
    /// Number of results to return. By default all documents are returned.
    #[schema(minimum = 1)]
    pub top_n: Option<usize>,
    /// If `true`, the results contain the texts of the documents. Defaults to `false`.
    pub return_documents: Option<bool>,
}

impl WireRequest for RerankRequest {}

/// Document to order.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or an object with `text`")]
pub enum DocumentInput {
    /// Text of the document.
    Text(String),
    /// Object with the text.
    Object(RankedDocument),
}

/// Document with its text in a field.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RankedDocument {
    /// Text of the document.
    pub text: String,
}

/// Documents, most relevant first.
#[derive(Debug, Serialize, ToSchema)]
pub struct RerankResponse {
    /// Always `list`.
    pub object: &'static str,
    /// Name of the reranker.
    pub model: String,
    /// Results, most relevant first; ties in the order of the request.
    pub results: Vec<RerankResult>,
    /// Tokens used. Absent if the reranker is an endpoint elsewhere, which counts them itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<RerankUsage>,
}

/// Relevance of one document.
#[derive(Debug, Serialize, ToSchema)]
pub struct RerankResult {
    /// Index of the document in the request, from 0.
    pub index: usize,
    /// Relevance from 0 to 1.
    pub relevance_score: f32,
    /// Score before it was mapped to \[0, 1\]. Absent if the reranker does not tell it. Not in the interface of Cohere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit: Option<f32>,
    /// The document, with `return_documents`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<RankedDocument>,
}

/// Number of tokens scored.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
pub struct RerankUsage {
    /// Number of tokens in all documents, each counted with the query.
    pub prompt_tokens: usize,
    /// Same as `prompt_tokens`.
    pub total_tokens: usize,
}

/// Orders documents by their relevance for a query.
#[utoipa::path(post, path = "/v1/rerank", operation_id = "rerank", tag = "retrieval", request_body = RerankRequest, responses(
    (status = 200, description = "the documents, most relevant first", body = RerankResponse),
    Refusals,
))]
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<RerankRequest>,
) -> Result<axum::Json<RerankResponse>, ApiError> {
    let served = state
        .reranker
        .clone()
        .ok_or_else(|| ApiError::new(Code::NotConfigured, "this server has no reranker: start it with `--reranker`"))?;
    check(&request, &served)?;
    let RerankRequest { query, documents, top_n, return_documents, .. } = request;
    let documents: Vec<String> = documents.into_iter().map(DocumentInput::text).collect();
    // Copied on request only, because scoring consumes the texts.
    let shown = (return_documents == Some(true)).then(|| documents.clone());
    let (scores, tokens) = score(&state, &caller, &served, query, documents).await?;
    let mut order: Vec<(usize, RerankScore)> = scores.into_iter().enumerate().collect();
    // A stable sort keeps ties in the order of the request.
    order.sort_by(|(_, a), (_, b)| a.best_first(b));
    order.truncate(top_n.unwrap_or(usize::MAX));
    let result = |(index, score): (usize, RerankScore)| RerankResult {
        index,
        relevance_score: score.relevance,
        logit: score.logit,
        document: shown.as_ref().map(|texts| RankedDocument { text: texts[index].clone() }),
    };
    let results = order.into_iter().map(result).collect();
    let usage = tokens.map(|tokens| RerankUsage { prompt_tokens: tokens, total_tokens: tokens });
    Ok(axum::Json(RerankResponse { object: "list", model: served.name.clone(), results, usage }))
}

/// Validates the request.
fn check(request: &RerankRequest, served: &ServedReranker) -> Result<(), ApiError> {
    let RerankRequest { model, query, documents, top_n, .. } = request;
    if *model != served.name && model != served.reranker.id() {
        let message = format!("the model `{model}` does not rerank: use `{}`", served.name);
        return Err(ApiError::new(Code::ModelNotFound, message).with_param("model"));
    }
    if query.trim().is_empty() {
        return Err(ApiError::invalid("query", "`query` is empty"));
    }
    if documents.is_empty() {
        return Err(ApiError::invalid("documents", "`documents` is empty"));
    }
    if documents.len() > MAX_DOCUMENTS {
        let message = format!("`documents` holds {} documents, {MAX_DOCUMENTS} at most", documents.len());
        return Err(ApiError::invalid("documents", message));
    }
    if *top_n == Some(0) {
        return Err(ApiError::invalid("top_n", "`top_n` must be at least 1, not 0"));
    }
    check_embedded("query", query.len(), MAX_TEXT_BYTES)?;
    for (index, document) in documents.iter().enumerate() {
        check_embedded(&format!("documents[{index}]"), document.as_str().len(), MAX_TEXT_BYTES)?;
    }
    Ok(())
}

/// Scores documents chunk by chunk on blocking threads, and counts their tokens. Between two chunks other requests have
/// their turn. An endpoint takes several requests at once, so it needs no turns.
async fn score(
    state: &AppState,
    caller: &Caller,
    served: &ServedReranker,
    query: String,
    mut documents: Vec<String>,
) -> Result<(Vec<RerankScore>, Option<usize>), ApiError> {
    // Admission lasts for the whole request, while turns are taken per chunk.
    let admitted = Arc::new(served.queue.admit(caller)?);
    let remote = served.reranker.is_remote();
    let query: Arc<str> = query.into();
    let mut scores = Vec::with_capacity(documents.len());
    let mut tokens = Some(0);
    while !documents.is_empty() {
        let chunk: Vec<String> = documents.drain(..CHUNK.min(documents.len())).collect();
        let place = Arc::clone(&admitted);
        // An endpoint encodes nothing here, and its slowest reply would hold the turn.
        let turn = if remote { None } else { Some(served.queue.turn().await) };
        // Admitted after the turn was taken, so a waiting chunk holds no memory for encoding.
        let longest = chunk.iter().map(String::len).chain([query.len()]).max().unwrap_or(0);
        let share = match remote {
            true => None,
            false => Some(state.admit_embedding(caller, "documents", longest, MAX_TEXT_BYTES).await?),
        };
        let reranker = Arc::clone(&served.reranker);
        let query = Arc::clone(&query);
        let work = move || -> Result<_, ApiError> {
            // The blocking thread holds them, because it keeps working even if the request is dropped.
            let _held = (place, turn, share);
            let texts: Vec<&str> = chunk.iter().map(String::as_str).collect();
            // The query is encoded again with each document, and so it is counted with each.
            let own = reranker.count_tokens(&query);
            let pair = |text: &&str| Some(reranker.count_tokens(text)? + own?);
            let tokens: Option<usize> = texts.iter().map(pair).sum();
            let failed = |error: RerankError| encoder_error("reranker", error.as_ref(), Code::RerankerUnavailable);
            let found = reranker.rerank(&query, &texts).map_err(failed)?;
            // NaN has no rank, and a missing score would shift those of the documents after it.
            if found.len() == texts.len() && found.iter().all(|score| score.relevance.is_finite()) {
                Ok((found, tokens))
            } else {
                Err(ApiError::new(Code::Internal, "the reranker failed: it did not score every document"))
            }
        };
        let (more, count) = run_blocking(work).await?;
        scores.extend(more);
        // One chunk without a count makes the sum unknown.
        tokens = tokens.zip(count).map(|(tokens, count)| tokens + count);
    }
    Ok((scores, tokens))
}

impl DocumentInput {
    fn as_str(&self) -> &str {
        match self {
            DocumentInput::Text(text) | DocumentInput::Object(RankedDocument { text }) => text,
        }
    }

    fn text(self) -> String {
        match self {
            DocumentInput::Text(text) | DocumentInput::Object(RankedDocument { text }) => text,
        }
    }
}
