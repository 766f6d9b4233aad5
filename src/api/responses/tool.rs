//! The tool `file_search` and its supported options.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use waymark_agent::Policy;
use waymark_index::{Condition, SearchOptions};

use crate::api::body;
use crate::api::error::{ApiError, Code};
use crate::api::state::{AppState, INDEX};

/// Maximum number of results per search, as in OpenAI's interface.
pub(crate) const MAX_RESULTS: usize = 50;

/// Search tool.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSearchTool {
    /// Always `file_search`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Names of the index to search: empty, `default`, or the name of the index's directory.
    pub vector_store_ids: Option<Vec<String>>,
    /// Number of passages per search, like `rag.k`.
    #[schema(minimum = 1, maximum = 50)]
    pub max_num_results: Option<usize>,
    /// Condition on the metadata of documents, like `rag.filters`.
    pub filters: Option<Condition>,
    /// Ranking of the results.
    pub ranking_options: Option<RankingOptions>,
}

/// Ranking of results. Use `rag.ranking` and `rag.mode` to choose a ranking.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RankingOptions {
    /// Ranker; only `auto` is supported.
    pub ranker: Option<String>,
    /// Minimum score; only 0 is supported, because scores of different searches have different units.
    pub score_threshold: Option<f64>,
    /// Not supported: must be null.
    #[schema(value_type = Option<Object>)]
    pub hybrid_search: Option<Value>,
}

/// Validated tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SearchTools {
    /// Tools as returned in the response.
    pub(super) listed: Vec<Value>,
    /// Options of the searches.
    pub(super) search: SearchOptions,
}

impl SearchTools {
    /// Validates the tools of a request to `policy`.
    ///
    /// # Errors
    /// Names the tool, or the field in it, that is not supported.
    pub(super) fn read(state: &AppState, tools: Option<Vec<Value>>, policy: &Policy) -> Result<SearchTools, ApiError> {
        let mut known = SearchTools::default();
        for (at, mut tool) in tools.unwrap_or_default().into_iter().enumerate() {
            let param = format!("tools[{at}]");
            match tool.get("type").and_then(Value::as_str) {
                Some("file_search") if at > 0 => return Err(ApiError::unsupported(&param, "more than one tool is")),
                Some("file_search") => {}
                Some(kind) => return Err(ApiError::unsupported(&param, &format!("tools of type `{kind}` are"))),
                None => return Err(ApiError::invalid(&param, format!("`{param}`: a tool has a `type`"))),
            }
            if policy.budget.turns == 0 {
                return Err(ApiError::unsupported(
                    &param,
                    &format!("the policy {} does not search: tools are", policy.name),
                ));
            }
            known.search = check(state, body::read(tool.clone(), &param)?, &param)?;
            // The response names the searched index even if the request did not.
            tool["vector_store_ids"] = json!([INDEX]);
            known.listed.push(tool);
        }
        Ok(known)
    }
}

/// Validates the tool. Returns its search options.
fn check(state: &AppState, tool: FileSearchTool, at: &str) -> Result<SearchOptions, ApiError> {
    for (index, store) in tool.vector_store_ids.unwrap_or_default().iter().enumerate() {
        if !state.is_index(store) {
            let param = format!("{at}.vector_store_ids[{index}]");
            let message = format!("`{param}`: unknown vector store `{store}`: expected {}", state.index_names());
            return Err(ApiError::new(Code::UnsupportedParameter, message).with_param(param));
        }
    }
    if let Some(ranking) = tool.ranking_options {
        ranking.check(&format!("{at}.ranking_options"))?;
    }
    let k = body::within(&format!("{at}.max_num_results"), tool.max_num_results, 1, MAX_RESULTS)?;
    Ok(SearchOptions { k, filters: tool.filters.map(Arc::new), ..SearchOptions::default() })
}

impl RankingOptions {
    /// Checks that the options are supported. `at` is their path in the request.
    ///
    /// # Errors
    /// Names the option that is not supported.
    pub(crate) fn check(&self, at: &str) -> Result<(), ApiError> {
        if self.ranker.as_ref().is_some_and(|ranker| ranker != "auto") {
            return Err(ApiError::unsupported(&format!("{at}.ranker"), "rankers other than `auto` are"));
        }
        if self.score_threshold.is_some_and(|threshold| threshold != 0.0) {
            return Err(ApiError::unsupported(&format!("{at}.score_threshold"), "a threshold is"));
        }
        if self.hybrid_search.is_some() {
            return Err(ApiError::unsupported(&format!("{at}.hybrid_search"), "weights are"));
        }
        Ok(())
    }
}

/// Returns `true` if the policy may search.
///
/// # Errors
/// For every choice except `auto` and `none`: no policy can be forced to search.
pub(super) fn may_search(choice: Option<&Value>) -> Result<bool, ApiError> {
    match choice.map(|choice| choice.as_str()) {
        None | Some(Some("auto")) => Ok(true),
        Some(Some("none")) => Ok(false),
        _ => Err(ApiError::unsupported("tool_choice", "choices other than `auto` and `none` are")),
    }
}
