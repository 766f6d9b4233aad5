//! Tools: `file_search`, and what of it can be had.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use waymark_index::Condition;

use crate::agent::Policy;
use crate::api::body;
use crate::api::error::{ApiError, Code};
use crate::api::state::{AppState, INDEX};
use crate::schema;

/// Most results per search, as in OpenAI's interface.
pub(crate) const MOST_RESULTS: usize = 50;

/// The tool that searches.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSearchTool {
    /// Always `file_search`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What is searched: nothing, or the server's index as `default` or by its folder's name.
    pub vector_store_ids: Option<Vec<String>>,
    /// How many passages a search returns, like `rag.k`.
    #[schema(minimum = 1, maximum = 50)]
    pub max_num_results: Option<usize>,
    /// What the metadata of documents must say, like `rag.filters`.
    #[schema(value_type = Option<schema::Condition>)]
    pub filters: Option<Condition>,
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
    /// What the metadata of what is found must say.
    pub(super) only: Option<Condition>,
}

impl Tools {
    /// Reads the tools for `policy`, of a server with this `state`.
    ///
    /// # Errors
    /// Names the tool, or the part of it, that cannot be used.
    pub(super) fn read(state: &AppState, tools: Option<Vec<Value>>, policy: &Policy) -> Result<Tools, ApiError> {
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
            (known.k, known.only) = check(state, body::read(tool.clone(), &param)?, &param)?;
            tool["vector_store_ids"] = json!([INDEX]);
            known.listed.push(tool);
        }
        Ok(known)
    }
}

/// How many passages the tool wants, and of which documents, if everything else about it can be had.
fn check(state: &AppState, tool: FileSearchTool, at: &str) -> Result<(Option<usize>, Option<Condition>), ApiError> {
    for (index, store) in tool.vector_store_ids.unwrap_or_default().iter().enumerate() {
        if !state.is_index(store) {
            let param = format!("{at}.vector_store_ids[{index}]");
            let message = format!("`{param}`: there is no vector store `{store}`, only {}", state.index_names());
            return Err(ApiError::new(Code::UnsupportedParameter, message).with_param(param));
        }
    }
    if let Some(ranking) = tool.ranking_options {
        ranking.check(&format!("{at}.ranking_options"))?;
    }
    let k = body::within(&format!("{at}.max_num_results"), tool.max_num_results, 1, MOST_RESULTS)?;
    Ok((k, tool.filters))
}

impl RankingOptions {
    /// Whether they can be had; `at` is where they stand.
    ///
    /// # Errors
    /// Names the one that cannot.
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
