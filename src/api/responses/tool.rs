//! Tools of a request: functions, and the tool `file_search` with its supported options.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use waymark_agent::Policy;
use waymark_index::{Condition, SearchOptions};

use super::function_tool::{FunctionTool, FunctionTools};
use crate::api::auth::Caller;
use crate::api::body;
use crate::api::error::{ApiError, Code};
use crate::api::indexes;
use crate::api::state::AppState;

/// Maximum number of results per search, as in OpenAI's interface.
pub(crate) const MAX_RESULTS: usize = 50;

/// Search tool.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSearchTool {
    /// Always `file_search`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Names of the index to search: empty, `default`, the name of an index, or the ID of a vector store. All of them must
    /// name the same index.
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

/// Tool of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ResponsesTool)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum ToolShape {
    /// Search.
    Search(FileSearchTool),
    /// Function of the client.
    Function(FunctionTool),
}

/// Tools of a request. The search tool is already validated.
#[derive(Debug, Default)]
pub(super) struct RequestTools {
    /// Tools as returned in the response.
    pub(super) listed: Vec<Value>,
    /// Functions of the client.
    pub(super) functions: FunctionTools,
    /// Index of the search tool among the tools, if there is one.
    searching: Option<usize>,
    /// Options of the searches.
    pub(super) search: SearchOptions,
    /// Name of the index that the tool names, if it names one.
    index: Option<String>,
}

impl RequestTools {
    /// Validates the tools of a request to `policy`.
    ///
    /// # Errors
    /// Names the tool, or the field in it, that is not supported.
    pub(super) fn read(
        state: &AppState,
        caller: &Caller,
        tools: Option<Vec<Value>>,
        policy: &Policy,
    ) -> Result<RequestTools, ApiError> {
        let mut known = RequestTools::default();
        for (at, tool) in tools.unwrap_or_default().into_iter().enumerate() {
            let param = format!("tools[{at}]");
            match tool.get("type").and_then(Value::as_str) {
                Some("function") => {
                    let listed = known.functions.add(tool, &param)?;
                    known.listed.push(listed);
                    continue;
                }
                Some("file_search") if known.searching.is_some() => {
                    return Err(ApiError::unsupported(&param, "more than one tool of type `file_search` is"));
                }
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
            let checked = check(state, caller, body::read(tool.clone(), &param)?, &param)?;
            known.index = checked.index;
            known.search = checked.search;
            known.searching = Some(at);
            known.listed.push(tool);
        }
        Ok(known)
    }

    /// Returns the state with the index that the request selects: by the tool, by `rag.index` as `named`, or by its
    /// policy.
    ///
    /// # Errors
    /// 400 if there is no such index, or if two are selected.
    pub(super) fn searched(
        &mut self,
        state: &AppState,
        caller: &Caller,
        named: Option<&str>,
        policy: &Policy,
    ) -> Result<AppState, ApiError> {
        let own = self.index.as_deref().and_then(|own| index_state(state, caller, own));
        let chosen = match (named, &own) {
            (None, Some(own)) => own.clone(),
            _ => state.of_request(caller, "rag.index", named.or(self.index.as_deref()), policy)?,
        };
        if own.is_some_and(|own| own.index_id() != chosen.index_id()) {
            let param = self.search_param("vector_store_ids");
            let message = format!("`{param}` and `rag.index` name different indexes: give one of them");
            return Err(ApiError::invalid("rag.index", message));
        }
        // The response names the searched index even if the request did not.
        if let Some(tool) = self.searching.and_then(|at| self.listed.get_mut(at)) {
            tool["vector_store_ids"] = json!([chosen.index_id()]);
        }
        Ok(chosen)
    }

    /// Returns `true` if the request lists the search tool.
    pub(super) fn lists_search(&self) -> bool {
        self.searching.is_some()
    }

    /// Returns the path of a field of the search tool in the request.
    pub(super) fn search_param(&self, field: &str) -> String {
        format!("tools[{}].{field}", self.searching.unwrap_or(0))
    }
}

/// Returns the state with the index `name` in place of the default one. A vector store without documents is an index that
/// finds nothing, as in OpenAI's interface: its files may still be waiting.
fn index_state(state: &AppState, caller: &Caller, name: &str) -> Option<AppState> {
    state.named(caller, name).or_else(|| state.empty_store(caller, name))
}

/// Validated search tool.
struct SearchTool {
    /// Name of the index that the tool names. `None` if it names none.
    index: Option<String>,
    /// Options of the searches.
    search: SearchOptions,
}

/// Validates the tool.
fn check(state: &AppState, caller: &Caller, tool: FileSearchTool, at: &str) -> Result<SearchTool, ApiError> {
    let stores = tool.vector_store_ids.unwrap_or_default();
    let mut first: Option<AppState> = None;
    for (index, store) in stores.iter().enumerate() {
        let param = format!("{at}.vector_store_ids[{index}]");
        let named = index_state(state, caller, store).ok_or_else(|| {
            if state.refuses(caller, store) {
                return indexes::forbidden(caller).with_param(&param);
            }
            let names = state.index_names(caller);
            let message = format!("`{param}`: unknown vector store `{store}`: expected {names}");
            ApiError::new(Code::UnsupportedParameter, message).with_param(&param)
        })?;
        // An index has several names, so its ID is compared.
        if first.as_ref().is_some_and(|first| first.index_id() != named.index_id()) {
            return Err(ApiError::unsupported(&param, "searches in several indexes at once are"));
        }
        first = Some(named);
    }
    if let Some(ranking) = tool.ranking_options {
        ranking.check(&format!("{at}.ranking_options"))?;
    }
    let k = body::within(&format!("{at}.max_num_results"), tool.max_num_results, 1, MAX_RESULTS)?;
    let search = SearchOptions { k, filters: tool.filters.map(Arc::new), ..SearchOptions::default() };
    Ok(SearchTool { index: stores.into_iter().next(), search })
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
