//! Tools of the client's own: what a request says of them, and how calls of them are told.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;
use waymark_models::chat::Tool;

use super::request::NamedSchema;
use crate::agent::call::Call;
use crate::agent::{Conversation, Policy};
use crate::api::error::ApiError;
use crate::api::state::AppState;

/// Most tools of one request, as in OpenAI's interface.
const MOST: usize = 128;

/// A tool that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolDefinition {
    /// Which kind.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function.
    pub function: FunctionDefinition,
}

/// Kinds of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// The only one.
    Function,
}

/// A function that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionDefinition {
    /// Its name: 1 to 64 letters, digits, `_` and `-`.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// A JSON schema of its arguments, which are an object. Put before the model; followed where `tool_choice` demands a
    /// call, with the bounds of `response_format`.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// True only where `tool_choice` demands a call: nothing holds a call to its schema that the model makes by itself.
    pub strict: Option<bool>,
}

/// Which tools the model calls.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected `none`, `auto`, `required`, or a function by its name")]
pub enum ToolChoice {
    /// None, or some.
    Mode(ToolMode),
    /// One call of this function and nothing else.
    Named(NamedTool),
}

/// Whether the model calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    /// It does not, and is not shown any.
    None,
    /// As it likes.
    Auto,
    /// One call of one of them and nothing else.
    Required,
}

/// A tool by its name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedTool {
    /// Which kind.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// Which function.
    pub function: NamedFunction,
}

/// A function by its name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedFunction {
    /// Its name.
    pub name: String,
}

/// A call that the model makes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// Names this call; the message with what came of it has it as `tool_call_id`.
    pub id: String,
    /// Which kind of tool.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function, and what it is called with.
    pub function: CalledFunction,
}

/// A function and what it is called with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CalledFunction {
    /// Its name.
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

/// What is new of a call. It begins once the call is whole, with empty arguments; those follow in the next chunk.
#[derive(Debug, Serialize, ToSchema)]
pub struct CallDelta<'a> {
    /// The call's number among those of the answer, from 0.
    pub index: usize,
    /// Names the call; in its first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// Which kind of tool; in its first chunk.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ToolKind>,
    /// The function.
    pub function: FunctionDelta<'a>,
}

/// What is new of a function that is called.
#[derive(Debug, Serialize, ToSchema)]
pub struct FunctionDelta<'a> {
    /// Its name; in the call's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// More of its arguments.
    pub arguments: &'a str,
}

impl ToolCall {
    /// A call with an id of its own.
    pub(super) fn new(call: Call) -> ToolCall {
        let Call { name, arguments } = call;
        let id = format!("call_{}", Uuid::now_v7().simple());
        ToolCall { id, kind: ToolKind::Function, function: CalledFunction { name, arguments } }
    }

    /// The two deltas of a stream that tell it as the call with this number.
    pub(super) fn deltas(&self, index: usize) -> [CallDelta<'_>; 2] {
        let CalledFunction { name, arguments } = &self.function;
        [
            CallDelta {
                index,
                id: Some(&self.id),
                kind: Some(self.kind),
                function: FunctionDelta { name: Some(name), arguments: "" },
            },
            CallDelta { index, id: None, kind: None, function: FunctionDelta { name: None, arguments } },
        ]
    }

    /// A call of an earlier answer, as the model is shown it; it stands at `param`.
    pub(super) fn shown(self, param: &str) -> Result<waymark_models::chat::ToolCall, ApiError> {
        let CalledFunction { name, arguments } = self.function;
        check_name(&format!("{param}.function.name"), &name)?;
        let param = format!("{param}.function.arguments");
        let none = arguments.trim().is_empty();
        let arguments = if none { Ok(Map::new()) } else { serde_json::from_str(&arguments) };
        let arguments = arguments
            .map_err(|_| ApiError::invalid(&param, format!("`{param}` must be a JSON object, written as text")))?;
        Ok(waymark_models::chat::ToolCall { name, arguments })
    }
}

/// What a request says of its tools.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Those that the model is shown.
    pub(super) shown: Vec<Tool>,
    /// The names of those of which it must make one call, if it must.
    pub(super) must: Vec<String>,
}

impl Tools {
    /// Reads tools and which of them are called.
    ///
    /// # Errors
    /// Names the tool, the part of it, or the choice that cannot be had.
    pub(super) fn read(tools: Option<Vec<ToolDefinition>>, choice: Option<ToolChoice>) -> Result<Tools, ApiError> {
        const CHOICE: &str = "tool_choice";
        let tools = tools.unwrap_or_default();
        if tools.len() > MOST {
            return Err(ApiError::invalid("tools", format!("`tools` holds {} tools, {MOST} at most", tools.len())));
        }
        let demands = matches!(choice, Some(ToolChoice::Named(_) | ToolChoice::Mode(ToolMode::Required)));
        if demands && tools.is_empty() {
            return Err(ApiError::invalid(CHOICE, format!("`{CHOICE}`: there are no `tools` to call")));
        }
        let free = matches!(choice, None | Some(ToolChoice::Mode(ToolMode::Auto)));
        let mut shown: Vec<Tool> = Vec::with_capacity(tools.len());
        for (at, tool) in tools.into_iter().enumerate() {
            let tool = tool.function.tool(&format!("tools[{at}].function"), free)?;
            if shown.iter().any(|other| other.name == tool.name) {
                let param = format!("tools[{at}].function.name");
                return Err(ApiError::invalid(&param, format!("`{param}`: there is another tool of this name")));
            }
            shown.push(tool);
        }
        let must = match choice {
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => Vec::new(),
            Some(ToolChoice::Mode(ToolMode::None)) => return Ok(Tools::default()),
            Some(ToolChoice::Mode(ToolMode::Required)) => shown.iter().map(|tool| tool.name.clone()).collect(),
            Some(ToolChoice::Named(NamedTool { function: NamedFunction { name }, .. })) => {
                if !shown.iter().any(|tool| tool.name == name) {
                    let message = format!("`{CHOICE}`: there is no tool of the name `{name}`");
                    return Err(ApiError::invalid("tool_choice.function.name", message));
                }
                vec![name]
            }
        };
        Ok(Tools { shown, must })
    }
}

impl FunctionDefinition {
    /// As the model is shown it; it stands at `param`. Where calls are `free` nothing holds them to it.
    fn tool(self, param: &str, free: bool) -> Result<Tool, ApiError> {
        let FunctionDefinition { name, description, parameters, strict } = self;
        check_name(&format!("{param}.name"), &name)?;
        let object = |fields: &Map<String, Value>| fields.get("type").is_none_or(|kind| kind == "object");
        if parameters.as_ref().is_some_and(|schema| !schema.as_object().is_some_and(object)) {
            let param = format!("{param}.parameters");
            return Err(ApiError::invalid(&param, format!("`{param}` must be the JSON schema of an object")));
        }
        if strict == Some(true) && free {
            let what = "calls that follow their schema without a `tool_choice` that demands one are";
            return Err(ApiError::unsupported(&format!("{param}.strict"), what));
        }
        Ok(Tool { name, description, parameters })
    }
}

/// Whether a function may be called `name`, which stands at `param`.
fn check_name(param: &str, name: &str) -> Result<(), ApiError> {
    NamedSchema::check_name(param, name)
        .map_err(|refused| ApiError { message: refused.message.replacen("a schema", "a function", 1), ..refused })
}

/// Whether `policy`, and the model, can make something of the tools in a conversation, if there are any.
///
/// # Errors
/// Names `tools`, or `messages` where only those tell of any.
pub(crate) fn check(state: &AppState, policy: &Policy, conversation: &Conversation) -> Result<(), ApiError> {
    if !conversation.has_tools() {
        return Ok(());
    }
    let param = if conversation.tools().is_empty() { "messages" } else { "tools" };
    let why = if !policy.protocol.calls() {
        format!("the policy {} has tools of its own, so that a client's are", policy.name)
    } else if !state.runtime.takes_tools() {
        let model = &state.runtime.engine.spec().name;
        format!(
            "the chat template of the model {model} knows no tools in the form of Hermes and Qwen, so that they are"
        )
    } else {
        return Ok(());
    };
    Err(ApiError::unsupported(param, &why))
}
