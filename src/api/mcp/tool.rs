//! The tools that are offered, and calling them.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ask::{self, Answered};
use super::message::Fault;
use super::search::{self, Found};
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;

/// What can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    /// `search`: evidence without a model.
    Search,
    /// `ask`: an episode.
    Ask,
}

/// A call, as it is sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    name: String,
    arguments: Option<Value>,
    _meta: Option<IgnoredAny>,
}

/// A tool as it is listed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    input_schema: Value,
    output_schema: Value,
    annotations: Annotations,
}

/// What calling a tool does to the world: none of these changes anything, or looks beyond the corpus.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    read_only_hint: bool,
    open_world_hint: bool,
}

/// What a call gave.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Called {
    content: [Text; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<Structured>,
    is_error: bool,
    /// What went wrong, for the log.
    #[serde(skip)]
    pub(super) failed: Option<Code>,
}

/// A text for a model to read.
#[derive(Debug, Serialize)]
struct Text {
    #[serde(rename = "type")]
    kind: &'static str,
    text: String,
}

/// The same for programs, by the tool's output schema.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Structured {
    Found(Found),
    Answered(Answered),
}

impl Tool {
    const ALL: [Tool; 2] = [Tool::Search, Tool::Ask];

    /// The tools that this server has what they need for.
    pub(super) fn offered(state: &AppState) -> Vec<Tool> {
        let has = |tool: &Tool| match tool {
            Tool::Search => state.runtime.searcher.is_some(),
            Tool::Ask => !state.policies.all().is_empty(),
        };
        Tool::ALL.into_iter().filter(has).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Tool::Search => "search",
            Tool::Ask => "ask",
        }
    }

    /// What it is for, as a part of a sentence.
    pub(super) fn purpose(self) -> &'static str {
        match self {
            Tool::Search => "`search` finds passages",
            Tool::Ask => "`ask` answers a question and names the passages that support the answer",
        }
    }

    fn listed(self, state: &AppState) -> Result<Listed, ApiError> {
        let (title, description, [input_schema, output_schema]) = match self {
            Tool::Search => ("Search", search::DESCRIPTION, search::schemas(state)?),
            Tool::Ask => ("Ask", ask::DESCRIPTION, ask::schemas(state)?),
        };
        let annotations = Annotations { read_only_hint: true, open_world_hint: false };
        Ok(Listed { name: self.name(), title, description, input_schema, output_schema, annotations })
    }
}

/// What is offered.
pub(super) fn list(state: &AppState) -> Result<Vec<Listed>, ApiError> {
    Tool::offered(state).into_iter().map(|tool| tool.listed(state)).collect()
}

/// Calls a tool. What goes wrong in it is a result too, which a model can read.
///
/// # Errors
/// There is no such tool, or it takes no such arguments.
pub(super) async fn call(state: &AppState, caller: &Caller, call: Call) -> Result<Called, Fault> {
    let offered = Tool::offered(state);
    let Some(tool) = offered.iter().find(|tool| tool.name() == call.name) else {
        let known: Vec<_> = offered.iter().map(|tool| tool.name()).collect();
        let message = format!("`name`: there is no tool `{}` here, only {}", call.name, known.join(", "));
        return Err(Fault::params(ApiError::invalid("name", message)));
    };
    let called = match tool {
        Tool::Search => search::call(state, call.arguments).await.map(|(text, found)| (text, Structured::Found(found))),
        Tool::Ask => {
            let answered = ask::call(state, caller, call.arguments).await;
            answered.map(|(text, answered)| (text, Structured::Answered(answered)))
        }
    };
    match called {
        Ok((text, structured)) => Ok(Called::new(text, Some(structured), None)),
        Err(error) if is_about_arguments(error.code) => Err(Fault::params(error)),
        Err(error) => Ok(Called::new(format!("{}: {}", error.code.name(), error.message), None, Some(error.code))),
    }
}

/// Whether the arguments are not what the tool's input schema wants.
fn is_about_arguments(code: Code) -> bool {
    matches!(code, Code::InvalidValue | Code::MissingParameter | Code::UnknownParameter | Code::UnsupportedParameter)
}

impl Called {
    fn new(text: String, structured_content: Option<Structured>, failed: Option<Code>) -> Called {
        let is_error = failed.is_some();
        Called { content: [Text { kind: "text", text }], structured_content, is_error, failed }
    }
}
