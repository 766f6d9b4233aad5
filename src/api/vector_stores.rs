//! `/v1/vector_stores/{id}/search`: evidence without a model, in OpenAI's form.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use waymark_index::fusion::{RRF_K, Ranked, depth_of_rankings, reciprocal_rank};
use waymark_index::{Condition, Hit, Mode, Query};

use super::body::{Json, Wire, within};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::found::{self, MOST_ATTRIBUTES};
use super::responses::tool::{MOST_RESULTS, RankingOptions};
use super::schema;
use super::state::AppState;

/// Passages returned when the request does not say.
const DEFAULT_RESULTS: usize = 10;

/// Texts that one request may search for.
const MOST_TEXTS: usize = 8;

/// A search. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VectorStoreSearchRequest {
    /// What to look for.
    pub query: SearchTexts,
    /// How many passages to return; 10 when not given.
    #[schema(minimum = 1, maximum = 50)]
    pub max_num_results: Option<usize>,
    /// What the metadata of documents must say: no others are found.
    #[schema(value_type = Option<schema::Condition>)]
    pub filters: Option<Condition>,
    /// How results are ranked.
    pub ranking_options: Option<RankingOptions>,
}

/// What to look for, as plain text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum SearchTexts {
    /// One text.
    One(String),
    /// Several texts, 8 at most. Each is searched for by itself, and what they find is joined by reciprocal rank fusion.
    Many(Vec<String>),
}

impl Wire for VectorStoreSearchRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[("rewrite_query", &["false"])];
}

/// What was found. There is only one page.
#[derive(Debug, Serialize, ToSchema)]
pub struct VectorStoreSearchPage {
    /// Always `vector_store.search_results.page`.
    pub object: &'static str,
    /// What was looked for.
    pub search_query: Vec<String>,
    /// Passages, best first.
    pub data: Vec<VectorStoreSearchResult>,
    /// Always false.
    pub has_more: bool,
    /// Always null.
    #[schema(required)]
    pub next_page: Option<String>,
}

/// A passage that was found.
#[derive(Debug, Serialize, ToSchema)]
pub struct VectorStoreSearchResult {
    /// The passage's id.
    pub file_id: String,
    /// Its title; its id where it has none.
    pub filename: String,
    /// A sum of reciprocal ranks in the lists it was found in: small, and good for comparing what one request found.
    #[schema(minimum = 0, maximum = 1)]
    pub score: f32,
    /// Of its document's metadata the first 16 texts, numbers and booleans; texts end after 512 characters.
    #[schema(value_type = Object)]
    pub attributes: Map<String, Value>,
    /// Its text, in one part.
    pub content: Vec<VectorStoreSearchContent>,
}

/// A text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename = "text")]
pub struct VectorStoreSearchContent {
    /// The text, as it is stored.
    pub text: String,
}

/// Searches the index, in OpenAI's form. `/v1/search` can do more, and tells how each passage was found.
#[utoipa::path(post, path = "/v1/vector_stores/{id}/search", operation_id = "searchVectorStore", tag = "retrieval",
    params(("id" = String, Path, description = "`default`, or the name of the index's folder")),
    request_body = VectorStoreSearchRequest,
    responses(
        (status = 200, description = "what was found", body = VectorStoreSearchPage),
        Refusals,
        (status = 504, description = "the search took too long", body = ErrorBody),
    ))]
pub(crate) async fn search(
    State(state): State<AppState>,
    id: Result<Path<String>, PathRejection>,
    Json(request): Json<VectorStoreSearchRequest>,
) -> Result<axum::Json<VectorStoreSearchPage>, ApiError> {
    state.searcher()?;
    let Path(id) = id.map_err(|error| absent(error.body_text()))?;
    if !state.is_index(&id) {
        return Err(absent(format!("there is no vector store `{id}` here, only {}", state.index_names())));
    }
    let VectorStoreSearchRequest { query, max_num_results, filters, ranking_options } = request;
    let texts = query.texts()?;
    let k = within("max_num_results", max_num_results, 1, MOST_RESULTS)?.unwrap_or(DEFAULT_RESULTS);
    if let Some(ranking) = ranking_options {
        ranking.check("ranking_options")?;
    }
    let only = filters.map(Arc::new);
    let deep = if texts.len() == 1 { k } else { depth_of_rankings(k) };
    let mut lists = Vec::with_capacity(texts.len());
    for text in &texts {
        let query = Query { only: only.clone(), ..Query::new(text.as_str(), Mode::Passage, deep) };
        lists.push(state.search(query).await?.hits);
    }
    let object = "vector_store.search_results.page";
    let data = results(&joined(lists, k));
    Ok(axum::Json(VectorStoreSearchPage { object, search_query: texts, data, has_more: false, next_page: None }))
}

fn absent(message: String) -> ApiError {
    ApiError::new(Code::VectorStoreNotFound, message).with_param("id")
}

impl SearchTexts {
    /// The texts, none of them empty.
    fn texts(self) -> Result<Vec<String>, ApiError> {
        let texts = match self {
            SearchTexts::One(text) if text.trim().is_empty() => {
                return Err(ApiError::invalid("query", "`query` is empty"));
            }
            SearchTexts::One(text) => return Ok(vec![text]),
            SearchTexts::Many(texts) => texts,
        };
        if !(1..=MOST_TEXTS).contains(&texts.len()) {
            let message = format!("`query` holds {} texts: from 1 to {MOST_TEXTS} can be searched for", texts.len());
            return Err(ApiError::invalid("query", message));
        }
        match texts.iter().position(|text| text.trim().is_empty()) {
            Some(at) => Err(ApiError::invalid(&format!("query[{at}]"), format!("`query[{at}]` is empty"))),
            None => Ok(texts),
        }
    }
}

/// One list of all of them, which are as deep as the rankings within one search.
fn joined(mut lists: Vec<Vec<Hit>>, k: usize) -> Vec<Hit> {
    if lists.len() == 1 {
        return lists.swap_remove(0);
    }
    let ids: Vec<Vec<&str>> =
        lists.iter().map(|hits| hits.iter().map(|hit| hit.passage.id.as_str()).collect()).collect();
    let ranked: Vec<Ranked<'_, &str>> = ids.iter().map(|ids| Ranked::new(ids)).collect();
    let hits: HashMap<&str, &Hit> = lists.iter().flatten().map(|hit| (hit.passage.id.as_str(), hit)).collect();
    let best = reciprocal_rank(&ranked, RRF_K).into_iter().take(k);
    best.map(|(id, score)| Hit { score: score as f32, ..hits[id].clone() }).collect()
}

fn results(hits: &[Hit]) -> Vec<VectorStoreSearchResult> {
    let scale = found::scale(hits);
    let result = |hit: &Hit| VectorStoreSearchResult {
        file_id: hit.passage.id.clone(),
        filename: found::filename(&hit.passage.title, &hit.passage.id),
        score: scale(hit.score),
        attributes: found::attributes(hit.metadata.as_ref()).take(MOST_ATTRIBUTES).collect(),
        content: vec![VectorStoreSearchContent { text: hit.passage.text.clone() }],
    };
    hits.iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use waymark_index::{Passage, Path};

    use super::*;

    #[test]
    fn several_lists_are_joined_by_the_places_in_them() {
        let list = |ids: &[&str]| -> Vec<Hit> {
            let hit = |(id, rank): (&&str, usize)| {
                let passage = Passage { id: (*id).to_owned(), title: String::new(), text: String::new() };
                Hit { rank, score: 0.5, passage, metadata: None, path: Path::default() }
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
