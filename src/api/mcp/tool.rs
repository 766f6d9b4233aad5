//! List of tools, and calls of them.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ask::{self, AskOutput};
use super::message::McpFault;
use super::search::{self, SearchOutput};
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;

/// Tool that clients can call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum McpTool {
    /// `search`: passages, without a model.
    Search,
    /// `ask`: an answer, by an episode.
    Ask,
}

/// Parameters of `tools/call`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallParams {
    name: String,
    arguments: Option<Value>,
    _meta: Option<IgnoredAny>,
}

/// Entry of `tools/list`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolListing {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    input_schema: Value,
    output_schema: Value,
    annotations: Annotations,
}

/// Side effects of a tool: none of the tools changes anything, or accesses anything but the corpus.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    read_only_hint: bool,
    open_world_hint: bool,
}

/// Result of a tool call.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolResult {
    content: [TextContent; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<Structured>,
    is_error: bool,
    /// Error code of a failed call, for the log.
    #[serde(skip)]
    pub(super) failed: Option<Code>,
}

/// Text for a model to read.
#[derive(Debug, Serialize)]
struct TextContent {
    #[serde(rename = "type")]
    kind: &'static str,
    text: String,
}

/// Same result for programs, following the tool's output schema.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Structured {
    Search(SearchOutput),
    Ask(AskOutput),
}

impl McpTool {
    const ALL: [McpTool; 2] = [McpTool::Search, McpTool::Ask];

    /// Returns the tools that this server can offer.
    pub(super) fn offered(state: &AppState) -> Vec<McpTool> {
        let has = |tool: &McpTool| match tool {
            McpTool::Search => state.runtime.searcher.is_some(),
            McpTool::Ask => !state.policies.all().is_empty(),
        };
        McpTool::ALL.into_iter().filter(has).collect()
    }

    fn name(self) -> &'static str {
        match self {
            McpTool::Search => "search",
            McpTool::Ask => "ask",
        }
    }

    /// Purpose of the tool, as part of a sentence.
    pub(super) fn purpose(self) -> &'static str {
        match self {
            McpTool::Search => "`search` finds passages",
            McpTool::Ask => "`ask` answers a question and names the passages that support the answer",
        }
    }

    fn listed(self, state: &AppState) -> Result<ToolListing, ApiError> {
        let (title, description, [input_schema, output_schema]) = match self {
            McpTool::Search => ("Search", search::DESCRIPTION, search::schemas(state)?),
            McpTool::Ask => ("Ask", ask::DESCRIPTION, ask::schemas(state)?),
        };
        let annotations = Annotations { read_only_hint: true, open_world_hint: false };
        Ok(ToolListing { name: self.name(), title, description, input_schema, output_schema, annotations })
    }
}

/// Lists the offered tools.
pub(super) fn list(state: &AppState) -> Result<Vec<ToolListing>, ApiError> {
    McpTool::offered(state).into_iter().map(|tool| tool.listed(state)).collect()
}

/// Calls a tool; `search` uses the index of the caller's key. A failure in the tool is a result as well, so a
/// model can read it.
///
/// # Errors
/// If there is no such tool, or the arguments are invalid.
pub(super) async fn call(state: &AppState, caller: &Caller, call: CallParams) -> Result<ToolResult, McpFault> {
    let own = state.for_caller(caller);
    let offered = McpTool::offered(&own);
    let Some(tool) = offered.iter().find(|tool| tool.name() == call.name) else {
        let known: Vec<_> = offered.iter().map(|tool| tool.name()).collect();
        let message = format!("`name`: unknown tool `{}`: expected one of {}", call.name, known.join(", "));
        return Err(McpFault::params(ApiError::invalid("name", message)));
    };
    let called = match tool {
        McpTool::Search => {
            search::call(&own, caller, call.arguments).await.map(|(text, found)| (text, Structured::Search(found)))
        }
        McpTool::Ask => {
            let answered = ask::call(state, caller, call.arguments).await;
            answered.map(|(text, answered)| (text, Structured::Ask(answered)))
        }
    };
    match called {
        Ok((text, structured)) => Ok(ToolResult::new(text, Some(structured), None)),
        // Clients can fix bad arguments by the schema, so these are protocol errors instead of results.
        Err(error) if is_about_arguments(error.code) => Err(McpFault::params(error)),
        Err(error) => Ok(ToolResult::new(format!("{}: {}", error.code.name(), error.message), None, Some(error.code))),
    }
}

/// Returns `true` for errors caused by arguments that violate the tool's input schema.
fn is_about_arguments(code: Code) -> bool {
    matches!(code, Code::InvalidValue | Code::MissingParameter | Code::UnknownParameter | Code::UnsupportedParameter)
}

impl ToolResult {
    fn new(text: String, structured_content: Option<Structured>, failed: Option<Code>) -> ToolResult {
        let is_error = failed.is_some();
        ToolResult { content: [TextContent { kind: "text", text }], structured_content, is_error, failed }
    }
}
