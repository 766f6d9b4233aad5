//! Tools defined by the client: their definitions in a request, and the calls in responses.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;
use waymark_agent::tool_call::ToolCallText;
use waymark_agent::{Conversation, Policy};
use waymark_models::chat::Tool;

use super::request::NamedSchema;
use crate::api::error::ApiError;
use crate::api::state::AppState;

/// Maximum number of tools in one request, as in OpenAI's interface.
const MAX_TOOLS: usize = 128;

/// Tool that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolDefinition {
    /// Type of the tool.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function.
    pub function: FunctionDefinition,
}

/// Type of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// Function of the client, the only type supported.
    Function,
}

/// Function that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionDefinition {
    /// Name of the function: 1 to 64 letters, digits, `_` and `-`.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    pub name: String,
    /// Purpose of the function, shown to the model.
    pub description: Option<String>,
    /// JSON schema of the arguments, which form an object. Shown to the model. Enforced if `tool_choice` demands a
    /// call, with the limits of `response_format`.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// May be `true` only if `tool_choice` demands a call: calls that the model chooses to make are not held to their
    /// schema.
    pub strict: Option<bool>,
}

/// Choice of the tools that the model calls.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected `none`, `auto`, `required`, or a function by its name")]
pub enum ToolChoice {
    /// Mode for all tools.
    Mode(ToolMode),
    /// Exactly one call of this function, and no other output.
    Named(NamedTool),
}

/// Mode of tool calling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    /// No calls; the tools are not shown to the model.
    None,
    /// The model decides.
    Auto,
    /// Exactly one call of any tool, and no other output.
    Required,
}

/// Tool identified by its name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedTool {
    /// Type of the tool.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// Function to call.
    pub function: NamedFunction,
}

/// Function identified by its name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedFunction {
    /// Name of the function.
    pub name: String,
}

/// Tool call made by the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ToolCall)]
#[serde(deny_unknown_fields)]
pub struct ChatToolCall {
    /// ID of this call. The message with its result repeats the ID as `tool_call_id`.
    pub id: String,
    /// Type of the tool.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// Function and its arguments.
    pub function: CalledFunction,
}

/// Called function and its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CalledFunction {
    /// Name of the function.
    pub name: String,
    /// Arguments: a JSON object, as text.
    pub arguments: String,
}

/// New part of a tool call. The first part is sent when the call is complete, with empty arguments; the second holds
/// them.
#[derive(Debug, Serialize, ToSchema)]
pub struct CallDelta<'a> {
    /// Index of the call among those of the answer, from 0.
    pub index: usize,
    /// ID of the call, in its first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// Type of the tool, in the first part.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ToolKind>,
    /// New part of the function.
    pub function: FunctionDelta<'a>,
}

/// New part of a called function.
#[derive(Debug, Serialize, ToSchema)]
pub struct FunctionDelta<'a> {
    /// Name of the function, in the call's first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// More of the arguments.
    pub arguments: &'a str,
}

impl ChatToolCall {
    /// Creates a call with a new ID.
    pub(super) fn new(call: ToolCallText) -> ChatToolCall {
        let ToolCallText { name, arguments } = call;
        let id = format!("call_{}", Uuid::now_v7().simple());
        ChatToolCall { id, kind: ToolKind::Function, function: CalledFunction { name, arguments } }
    }

    /// Returns the two deltas that send this call in a stream. `index` is its number in the answer.
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

    /// Converts a call of an earlier answer to the form that the chat template takes. `param` is its path in the
    /// request.
    pub(super) fn shown(self, param: &str) -> Result<waymark_models::chat::ToolCall, ApiError> {
        let CalledFunction { name, arguments } = self.function;
        check_name(&format!("{param}.function.name"), &name)?;
        let param = format!("{param}.function.arguments");
        // Some clients send a call without arguments back with an empty text.
        let none = arguments.trim().is_empty();
        let arguments = if none { Ok(Map::new()) } else { serde_json::from_str(&arguments) };
        let arguments = arguments
            .map_err(|_| ApiError::invalid(&param, format!("`{param}` must be a JSON object, written as text")))?;
        Ok(waymark_models::chat::ToolCall { name, arguments })
    }
}

/// Validated tools of a request.
#[derive(Debug, Default)]
pub(super) struct ClientTools {
    /// Tools shown to the model.
    pub(super) shown: Vec<Tool>,
    /// Names of the tools of which exactly one call is demanded. Empty if none is.
    pub(super) demanded: Vec<String>,
}

impl ClientTools {
    /// Validates `tools` and `tool_choice`.
    ///
    /// # Errors
    /// Names the tool, the field in it, or the choice that is not supported.
    pub(super) fn read(
        tools: Option<Vec<ToolDefinition>>,
        choice: Option<ToolChoice>,
    ) -> Result<ClientTools, ApiError> {
        const CHOICE: &str = "tool_choice";
        let tools = tools.unwrap_or_default();
        if tools.len() > MAX_TOOLS {
            return Err(ApiError::invalid(
                "tools",
                format!("`tools` holds {} tools, {MAX_TOOLS} at most", tools.len()),
            ));
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
        let demanded = match choice {
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => Vec::new(),
            // The tools were checked all the same: `none` does not make an invalid request valid.
            Some(ToolChoice::Mode(ToolMode::None)) => return Ok(ClientTools::default()),
            Some(ToolChoice::Mode(ToolMode::Required)) => shown.iter().map(|tool| tool.name.clone()).collect(),
            Some(ToolChoice::Named(NamedTool { function: NamedFunction { name }, .. })) => {
                if !shown.iter().any(|tool| tool.name == name) {
                    let message = format!("`{CHOICE}`: there is no tool of the name `{name}`");
                    return Err(ApiError::invalid("tool_choice.function.name", message));
                }
                vec![name]
            }
        };
        Ok(ClientTools { shown, demanded })
    }
}

impl FunctionDefinition {
    /// Converts the function to the form that the chat template takes. `param` is its path in the request. If calls are
    /// `free`, they are not held to their schema.
    fn tool(self, param: &str, free: bool) -> Result<Tool, ApiError> {
        let FunctionDefinition { name, description, parameters, strict } = self;
        check_name(&format!("{param}.name"), &name)?;
        // A schema without `type` may still describe an object.
        let object = |fields: &Map<String, Value>| fields.get("type").is_none_or(|kind| kind == "object");
        if parameters.as_ref().is_some_and(|schema| !schema.as_object().is_some_and(object)) {
            let param = format!("{param}.parameters");
            return Err(ApiError::invalid(&param, format!("`{param}` must be the JSON schema of an object")));
        }
        // Without a demanded call there is no grammar that could keep the promise of `strict`.
        if strict == Some(true) && free {
            let what = "calls that follow their schema without a `tool_choice` that demands one are";
            return Err(ApiError::unsupported(&format!("{param}.strict"), what));
        }
        Ok(Tool { name, description, parameters })
    }
}

/// Checks that `name` is a valid name of a function. `param` is its path in the request.
fn check_name(param: &str, name: &str) -> Result<(), ApiError> {
    // Functions and schemas have the same rules for names; only the noun in the message differs.
    NamedSchema::check_name(param, name)
        .map_err(|refused| ApiError { message: refused.message.replacen("a schema", "a function", 1), ..refused })
}

/// Checks that `policy` and the model support the tools in a conversation, if there are any.
///
/// # Errors
/// Names `tools`, or `messages` if only the messages mention tools.
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
