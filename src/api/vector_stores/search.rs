//! `/v1/vector_stores/{id}/search`: searches the index without a model, in OpenAI's format.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use waymark_index::fusion::{RRF_K, RankedList, depth_of_rankings, reciprocal_rank};
use waymark_index::{AnswerCut, Condition, Hit, SearchOptions};

use super::absent;
use crate::api::auth::Caller;
use crate::api::body::{JsonBody, WireRequest, within};
use crate::api::error::{ApiError, ErrorBody, Refusals};
use crate::api::path_param::PathParam;
use crate::api::responses::tool::{MAX_RESULTS, RankingOptions};
use crate::api::search_results::{self, MAX_ATTRIBUTES};
use crate::api::state::AppState;
use crate::api::text_or::TextOr;

/// Default number of results.
const DEFAULT_RESULTS: usize = 10;

/// Maximum number of queries in one request.
const MAX_QUERIES: usize = 8;

/// Search request. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VectorStoreSearchRequest {
    /// Query, or several queries.
    pub query: SearchTexts,
    /// Number of passages to return; defaults to 10.
    #[schema(minimum = 1, maximum = 50)]
    pub max_num_results: Option<usize>,
    /// Condition on the metadata of documents; only matching documents are found.
    pub filters: Option<Condition>,
    /// Ranking of the results.
    pub ranking_options: Option<RankingOptions>,
}

/// One query or several, as plain text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<String>>")]
pub enum SearchTexts {
    /// One query.
    One(String),
    /// At most 8 queries. Each one is searched separately, and the results are joined by reciprocal rank fusion.
    Many(Vec<String>),
}

impl From<TextOr<Vec<String>>> for SearchTexts {
    fn from(texts: TextOr<Vec<String>>) -> SearchTexts {
        match texts {
            TextOr::Text(text) => SearchTexts::One(text),
            TextOr::Other(texts) => SearchTexts::Many(texts),
        }
    }
}

impl WireRequest for VectorStoreSearchRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[("rewrite_query", &["false"])];
}

/// Search results. There is only one page.
#[derive(Debug, Serialize, ToSchema)]
pub struct VectorStoreSearchPage {
    /// Always `vector_store.search_results.page`.
    pub object: &'static str,
    /// Queries, as searched.
    pub search_query: Vec<String>,
    /// Passages, best first.
    pub data: Vec<VectorStoreSearchResult>,
    /// `true` only if passages were left out because of the size of the answer.
    pub has_more: bool,
    /// Always null.
    #[schema(required)]
    pub next_page: Option<String>,
    /// Last passages, if they were left out because of the size of the answer. Not in OpenAI's interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<AnswerCut>,
}

/// Retrieved passage.
#[derive(Debug, Serialize, ToSchema)]
pub struct VectorStoreSearchResult {
    /// ID of the file that the passage is from, or of the passage if it is from no uploaded file.
    pub file_id: String,
    /// Name of the file. Of a passage from no uploaded file its title, or its ID if it has no title.
    pub filename: String,
    /// Sum of reciprocal ranks in the lists that hold the passage. Small, and comparable only within one request.
    #[schema(minimum = 0, maximum = 1)]
    pub score: f32,
    /// First 16 texts, numbers and booleans of the document's metadata, which begins with the attributes of its file.
    /// Texts are truncated to 512 characters.
    #[schema(value_type = Object)]
    pub attributes: Map<String, Value>,
    /// Text of the passage, in one part.
    pub content: Vec<VectorStoreSearchContent>,
}

/// Text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename = "text")]
pub struct VectorStoreSearchContent {
    /// Text of the passage, as stored.
    pub text: String,
}

/// Searches the index, in OpenAI's format. `/v1/search` has more options and explains how each passage was found.
#[utoipa::path(post, path = "/v1/vector_stores/{id}/search", operation_id = "searchVectorStore", tag = "retrieval",
    params(("id" = String, Path, description = "ID of the vector store, `default`, or the name of an index")),
    request_body = VectorStoreSearchRequest,
    responses(
        (status = 200, description = "the search results", body = VectorStoreSearchPage),
        Refusals,
        (status = 504, description = "the search took too long", body = ErrorBody),
    ))]
pub(crate) async fn search(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    JsonBody(request): JsonBody<VectorStoreSearchRequest>,
) -> Result<axum::Json<VectorStoreSearchPage>, ApiError> {
    let VectorStoreSearchRequest { query, max_num_results, filters, ranking_options } = request;
    let texts = query.texts()?;
    let k = within("max_num_results", max_num_results, 1, MAX_RESULTS)?.unwrap_or(DEFAULT_RESULTS);
    if let Some(ranking) = ranking_options {
        ranking.check("ranking_options")?;
    }
    let Some(searched) = state.named(&caller, &id) else {
        if state.vector_stores.is_none() && !state.refuses(&caller, &id) {
            // Without an index, no name is right, and the error has to say so.
            state.searcher()?;
        }
        // A vector store without documents is empty, not an error.
        let empty = super::own(&state, &caller, &id).ok_or_else(|| absent(&state, &caller, &id));
        return empty.map(|_| axum::Json(VectorStoreSearchPage::empty(texts)));
    };
    let state = searched;
    // Fusion needs lists longer than its result: a passage low in every list may rank high overall.
    let deep = if texts.len() == 1 { k } else { depth_of_rankings(k) };
    let search = SearchOptions { k: Some(deep), filters: filters.map(Arc::new), ..SearchOptions::default() };
    let limit = state.config.answer_bytes;
    let mut lists = Vec::with_capacity(texts.len());
    let mut left_out = 0;
    // One after another: a request with several queries takes one thread of the searcher, like any other.
    for text in &texts {
        // The lists together take no more memory than the answer may.
        let query = search.query(text.as_str()).bytes(limit / texts.len());
        let found = state.search(&caller, query).await?;
        left_out += found.left_out;
        lists.push(found.hits);
    }
    let hits = joined(lists, k);
    // The lists of several queries are deeper than the result, which misses at most the passages up to `k`.
    let left_out = left_out.min(k.saturating_sub(hits.len()));
    let cut = AnswerCut::of(left_out, limit);
    let data = results(&hits);
    let has_more = cut.is_some();
    Ok(axum::Json(VectorStoreSearchPage { data, has_more, cut, ..VectorStoreSearchPage::empty(texts) }))
}

impl VectorStoreSearchPage {
    /// Creates a page without results.
    fn empty(search_query: Vec<String>) -> Self {
        let object = "vector_store.search_results.page";
        Self { object, search_query, data: Vec::new(), has_more: false, next_page: None, cut: None }
    }
}

impl SearchTexts {
    /// Returns the queries, checked to be non-empty.
    fn texts(self) -> Result<Vec<String>, ApiError> {
        let texts = match self {
            SearchTexts::One(text) if text.trim().is_empty() => {
                return Err(ApiError::invalid("query", "`query` is empty"));
            }
            SearchTexts::One(text) => return Ok(vec![text]),
            SearchTexts::Many(texts) => texts,
        };
        if !(1..=MAX_QUERIES).contains(&texts.len()) {
            let message = format!("`query` must hold from 1 to {MAX_QUERIES} texts, not {}", texts.len());
            return Err(ApiError::invalid("query", message));
        }
        match texts.iter().position(|text| text.trim().is_empty()) {
            Some(at) => Err(ApiError::invalid(&format!("query[{at}]"), format!("`query[{at}]` is empty"))),
            None => Ok(texts),
        }
    }
}

/// Joins several lists of results into one of `k` results. The lists are as deep as those fused within one search.
fn joined(mut lists: Vec<Vec<Hit>>, k: usize) -> Vec<Hit> {
    // A single list keeps the scores of its search.
    if lists.len() == 1 {
        return lists.swap_remove(0);
    }
    let ids: Vec<Vec<&str>> =
        lists.iter().map(|hits| hits.iter().map(|hit| hit.passage.id.as_str()).collect()).collect();
    let ranked: Vec<RankedList<'_, &str>> = ids.iter().map(|ids| RankedList::new(ids)).collect();
    let hits: HashMap<&str, &Hit> = lists.iter().flatten().map(|hit| (hit.passage.id.as_str(), hit)).collect();
    let best = reciprocal_rank(&ranked, RRF_K).into_iter().take(k);
    best.map(|(id, score)| Hit { score: score as f32, ..hits[id].clone() }).collect()
}

fn results(hits: &[Hit]) -> Vec<VectorStoreSearchResult> {
    let scale = search_results::scale(hits);
    let result = |hit: &Hit| VectorStoreSearchResult {
        file_id: search_results::file_id(&hit.passage.id).to_owned(),
        filename: search_results::filename_of(hit),
        score: scale(hit.score),
        attributes: search_results::attributes(hit.metadata.as_ref()).take(MAX_ATTRIBUTES).collect(),
        content: vec![VectorStoreSearchContent { text: hit.passage.text.clone() }],
    };
    hits.iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use waymark_index::{HitPath, Passage};

    use super::*;

    #[test]
    fn several_lists_are_joined_by_the_places_in_them() {
        let list = |ids: &[&str]| -> Vec<Hit> {
            let hit = |(id, rank): (&&str, usize)| {
                let passage = Passage { id: (*id).to_owned(), title: String::new(), text: String::new() };
                Hit { rank, score: 0.5, passage, metadata: None, path: HitPath::default() }
            };
            ids.iter().zip(1..).map(hit).collect()
        };
        let found = |lists: Vec<Vec<Hit>>, k| -> Vec<(String, f32)> {
            joined(lists, k).into_iter().map(|hit| (hit.passage.id, hit.score)).collect()
        };
        let both = found(vec![list(&["a", "b", "c"]), list(&["c", "b", "d"])], 3);
        let expected = [("c", 1.0 / 63.0 + 1.0 / 61.0), ("b", 2.0 / 62.0), ("a", 1.0 / 61.0)];
        assert_eq!(both, expected.map(|(id, score): (&str, f64)| (id.to_owned(), score as f32)));
        assert_eq!(found(vec![list(&["a"])], 3), [("a".to_owned(), 0.5)]);
    }
}
