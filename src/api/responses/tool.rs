//! Tools: `file_search`, and what of it can be had.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::agent::Policy;
use crate::api::body;
use crate::api::error::{ApiError, Code};

/// The name of the index that a server has.
const STORE: &str = "default";

/// Most results per search, as in OpenAI's interface.
const MOST: usize = 50;

/// The tool that searches.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSearchTool {
    /// Always `file_search`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What is searched: nothing, or `["default"]`, the server's index.
    pub vector_store_ids: Option<Vec<String>>,
    /// How many passages a search returns, like `rag.k`.
    #[schema(minimum = 1, maximum = 50)]
    pub max_num_results: Option<usize>,
    /// Filters are not supported: must be null.
    #[schema(value_type = Option<Object>)]
    pub filters: Option<Value>,
    /// How results are ranked.
    pub ranking_options: Option<RankingOptions>,
}

/// How results are ranked. `rag.ranking` and `rag.mode` say it here.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RankingOptions {
    /// Only `auto`.
    pub ranker: Option<String>,
    /// Only 0: scores of different searches have different units.
    pub score_threshold: Option<f64>,
    /// Not supported: must be null.
    #[schema(value_type = Option<Object>)]
    pub hybrid_search: Option<Value>,
}

/// What the tools of a request mean.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tools {
    /// As they are shown.
    pub(super) listed: Vec<Value>,
    /// Passages per search.
    pub(super) k: Option<usize>,
}

impl Tools {
    /// Reads the tools for `policy`.
    ///
    /// # Errors
    /// Names the tool, or the part of it, that cannot be used.
    pub(super) fn read(tools: Option<Vec<Value>>, policy: &Policy) -> Result<Tools, ApiError> {
        let mut known = Tools::default();
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
            known.k = check(body::read(tool.clone(), &param)?, &param)?;
            tool["vector_store_ids"] = json!([STORE]);
            known.listed.push(tool);
        }
        Ok(known)
    }
}

/// How many passages the tool wants, if everything else about it can be had.
fn check(tool: FileSearchTool, at: &str) -> Result<Option<usize>, ApiError> {
    for (index, store) in tool.vector_store_ids.unwrap_or_default().iter().enumerate() {
        if store != STORE {
            let param = format!("{at}.vector_store_ids[{index}]");
            let message = format!("`{param}`: there is no vector store `{store}`, only `{STORE}`");
            return Err(ApiError::new(Code::UnsupportedParameter, message).with_param(param));
        }
    }
    if tool.filters.is_some() {
        return Err(ApiError::unsupported(&format!("{at}.filters"), "filters are"));
    }
    if let Some(ranking) = tool.ranking_options {
        let at = format!("{at}.ranking_options");
        if ranking.ranker.is_some_and(|ranker| ranker != "auto") {
            return Err(ApiError::unsupported(&format!("{at}.ranker"), "rankers other than `auto` are"));
        }
        if ranking.score_threshold.is_some_and(|threshold| threshold != 0.0) {
            return Err(ApiError::unsupported(&format!("{at}.score_threshold"), "a threshold is"));
        }
        if ranking.hybrid_search.is_some() {
            return Err(ApiError::unsupported(&format!("{at}.hybrid_search"), "weights are"));
        }
    }
    body::within(&format!("{at}.max_num_results"), tool.max_num_results, 1, MOST)
}

/// Whether the policy may search.
///
/// # Errors
/// For every choice but `auto` and `none`: no policy can be made to search.
pub(super) fn may_search(choice: Option<&Value>) -> Result<bool, ApiError> {
    match choice.map(|choice| choice.as_str()) {
        None | Some(Some("auto")) => Ok(true),
        Some(Some("none")) => Ok(false),
        _ => Err(ApiError::unsupported("tool_choice", "choices other than `auto` and `none` are")),
    }
}
