//! Tools defined by the client: their definitions in a request, and the calls in responses.

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;
use waymark_agent::tool_call::ToolCallText;
use waymark_agent::{Conversation, EpisodeOptions, Policy};
use waymark_models::chat::{Arguments, Tool};

use super::allowed_tools::AllowedTools;
use super::choice_fields::ChoiceFields;
use super::request::NamedSchema;
use crate::api::auth::Caller;
use crate::api::body;
use crate::api::episodes::EpisodeRequest;
use crate::api::error::ApiError;
use crate::api::state::AppState;
use crate::api::text_or::TextOr;
use crate::api::traces;

/// Maximum number of tools in one request, as in OpenAI's interface.
const MAX_TOOLS: usize = 128;

/// Beginning of the ID of every call.
pub(crate) const CALL_PREFIX: &str = "call_";

/// Beginnings of the IDs of episodes, which the IDs of their calls leave out: OpenAI's interface limits these to 40
/// characters. The last one is that of any other ID, and of calls whose ID holds the whole ID of their episode.
const EPISODE_PREFIXES: [&str; 3] = ["chatcmpl-", "resp_", ""];

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
    /// call or `strict` is set, with the limits of `response_format`.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// If `true`, every call of this function follows the schema, and an answer holds at most one call.
    pub strict: Option<bool>,
}

/// Choice of the tools that the model calls.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, try_from = "TextOr<ChoiceFields>")]
pub enum ToolChoice {
    /// Mode for all tools.
    Mode(ToolMode),
    /// Exactly one call of this function, and no other output.
    Named(NamedTool),
    /// Some of the tools.
    Allowed(AllowedTools),
}

/// Mode of tool calling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    /// Index of the call, which OpenAI's libraries keep in calls that they assemble from a stream. Ignored.
    #[serde(default, deserialize_with = "ignored", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<usize>, write_only)]
    pub index: Option<()>,
}

/// Called function and its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CalledFunction {
    /// Name of the function.
    pub name: String,
    /// Arguments: a JSON object, as text.
    pub arguments: String,
    /// Arguments as OpenAI's libraries keep them next to the text in calls that are sent back. Ignored.
    #[serde(default, deserialize_with = "ignored", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub parsed_arguments: Option<()>,
}

/// Reads a field of any value as `None`. With `skip_serializing`, the field would be missing in the schema.
fn ignored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<()>, D::Error> {
    IgnoredAny::deserialize(deserializer)?;
    Ok(None)
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
    /// Creates the call that ended the episode `episode`. The ID of the call leads back to it.
    pub(crate) fn of_episode(episode: &str, name: String, arguments: String) -> ChatToolCall {
        let number = EPISODE_PREFIXES.iter().find_map(|prefix| episode.strip_prefix(*prefix)).unwrap_or(episode);
        ChatToolCall::with_id(format!("{CALL_PREFIX}{number}"), name, arguments)
    }

    /// Creates a call with a new ID.
    pub(crate) fn new(call: ToolCallText) -> ChatToolCall {
        let ToolCallText { name, arguments } = call;
        ChatToolCall::with_id(format!("{CALL_PREFIX}{}", Uuid::now_v7().simple()), name, arguments)
    }

    fn with_id(id: String, name: String, arguments: String) -> ChatToolCall {
        let function = CalledFunction::new(name, arguments);
        ChatToolCall { id, kind: ToolKind::Function, function, index: None }
    }

    /// Returns the two deltas that send this call in a stream. `index` is its number in the answer.
    pub(super) fn deltas(&self, index: usize) -> [CallDelta<'_>; 2] {
        let CalledFunction { name, arguments, .. } = &self.function;
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
    pub(crate) fn shown(self, param: &str) -> Result<waymark_models::chat::ToolCall, ApiError> {
        self.function.shown(&format!("{param}.function"))
    }
}

impl CalledFunction {
    /// Creates a call of the function `name`.
    pub(crate) fn new(name: String, arguments: String) -> CalledFunction {
        CalledFunction { name, arguments, parsed_arguments: None }
    }

    /// Converts a call of an earlier answer to the form that the chat template takes. `param` is the path of its name
    /// and arguments in the request.
    pub(crate) fn shown(self, param: &str) -> Result<waymark_models::chat::ToolCall, ApiError> {
        let CalledFunction { name, arguments, .. } = self;
        check_name(&format!("{param}.name"), &name)?;
        let param = format!("{param}.arguments");
        // Arguments are text in a body, whose own check does not look into them, but JSON in records: with more levels
        // than the parser accepts, a record could not be read again.
        body::check_text(&arguments).map_err(|reason| ApiError::invalid(&param, format!("`{param}` {reason}")))?;
        // Some clients send a call without arguments back with an empty text.
        let none = arguments.trim().is_empty();
        let arguments = if none { Ok(Arguments::default()) } else { Arguments::parse(&arguments) };
        let arguments = arguments
            .map_err(|_| ApiError::invalid(&param, format!("`{param}` must be a JSON object, written as text")))?;
        Ok(waymark_models::chat::ToolCall { name, arguments })
    }
}

/// Validated tools of a request.
#[derive(Debug, Default)]
pub(crate) struct ClientTools {
    /// Tools shown to the model.
    pub(super) shown: Vec<Tool>,
    /// Names of the tools that satisfy the demand for exactly one call. Empty if no call is demanded.
    pub(super) demanded: Vec<String>,
    /// Names of the tools with `strict`.
    pub(super) strict: Vec<String>,
}

impl ClientTools {
    /// Validates `tools` and `tool_choice`.
    ///
    /// # Errors
    /// Names the tool, the field in it, or the choice that is not supported.
    pub(crate) fn read(
        tools: Option<Vec<ToolDefinition>>,
        choice: Option<ToolChoice>,
    ) -> Result<ClientTools, ApiError> {
        let functions = tools.into_iter().flatten().enumerate();
        let functions = functions.map(|(at, tool)| (format!("tools[{at}].function"), tool.function));
        ClientTools::of_functions(functions.collect(), choice)
    }

    /// Validates functions, each with its path in the request, and `tool_choice`.
    ///
    /// # Errors
    /// Names the function, the field in it, or the choice that is not supported.
    pub(crate) fn of_functions(
        functions: Vec<(String, FunctionDefinition)>,
        choice: Option<ToolChoice>,
    ) -> Result<ClientTools, ApiError> {
        const CHOICE: &str = "tool_choice";
        if functions.len() > MAX_TOOLS {
            let message = format!("`tools` holds {} tools, {MAX_TOOLS} at most", functions.len());
            return Err(ApiError::invalid("tools", message));
        }
        let demands = matches!(choice, Some(ToolChoice::Named(_) | ToolChoice::Mode(ToolMode::Required)));
        if demands && functions.is_empty() {
            return Err(ApiError::invalid(CHOICE, format!("`{CHOICE}`: there are no `tools` to call")));
        }
        let mut strict = Vec::new();
        let mut shown: Vec<Tool> = Vec::with_capacity(functions.len());
        for (at, function) in functions {
            if function.strict == Some(true) {
                strict.push(function.name.clone());
            }
            let tool = function.tool(&at)?;
            if shown.iter().any(|other| other.name == tool.name) {
                let param = format!("{at}.name");
                return Err(ApiError::invalid(&param, format!("`{param}`: there is another tool of this name")));
            }
            shown.push(tool);
        }
        let demanded = match choice {
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => Vec::new(),
            // The tools were checked all the same: `none` does not make an invalid request valid.
            Some(ToolChoice::Mode(ToolMode::None)) => return Ok(ClientTools::default()),
            Some(ToolChoice::Mode(ToolMode::Required)) => shown.iter().map(|tool| tool.name.clone()).collect(),
            Some(ToolChoice::Allowed(choice)) => {
                return choice.allowed_tools.of(ClientTools { shown, demanded: Vec::new(), strict });
            }
            Some(ToolChoice::Named(NamedTool { function: NamedFunction { name }, .. })) => {
                if !shown.iter().any(|tool| tool.name == name) {
                    let message = format!("`{CHOICE}`: there is no tool of the name `{name}`");
                    return Err(ApiError::invalid("tool_choice.function.name", message));
                }
                vec![name]
            }
        };
        Ok(ClientTools { shown, demanded, strict })
    }
}

impl FunctionDefinition {
    /// Converts the function to the form that the chat template takes. `param` is its path in the request.
    fn tool(self, param: &str) -> Result<Tool, ApiError> {
        let FunctionDefinition { name, description, parameters, .. } = self;
        check_name(&format!("{param}.name"), &name)?;
        // A schema without `type` may still describe an object.
        let object = |fields: &Map<String, Value>| fields.get("type").is_none_or(|kind| kind == "object");
        if parameters.as_ref().is_some_and(|schema| !schema.as_object().is_some_and(object)) {
            let param = format!("{param}.parameters");
            return Err(ApiError::invalid(&param, format!("`{param}` must be the JSON schema of an object")));
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

/// Adds tools to a conversation, and their demands to the options of its episodes. Returns the names of the tools whose
/// calls `policy` writes in its answer.
pub(crate) fn offer(
    tools: ClientTools,
    parallel: Option<bool>,
    policy: &Policy,
    conversation: Conversation,
    options: &mut EpisodeOptions,
) -> (Vec<String>, Conversation) {
    let ClientTools { shown, demanded, strict } = tools;
    if shown.is_empty() {
        return (Vec::new(), conversation);
    }
    let in_answer = policy.protocol.calls();
    if !demanded.is_empty() {
        // The demanded call replaces the answer, so the form of the answer does not apply.
        options.form = None;
    }
    let names: Vec<String> = shown.iter().map(|tool| tool.name.clone()).collect();
    // A forced call is always a single call, so the limit matters only for free ones.
    if parallel == Some(false) && demanded.is_empty() {
        options.one_call.clone_from(&names);
    }
    options.calls = demanded;
    options.strict = strict;
    let names = if in_answer { names } else { Vec::new() };
    (names, conversation.with_tools(shown))
}

/// Makes an episode continue an earlier one that ended with a call, if the conversation continues with the result of
/// that call and the trace of the earlier episode is still kept. `call` is the ID of the call.
pub(crate) async fn resume(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    call: Option<&str>,
    request: &mut EpisodeRequest,
) {
    let Some(number) = call.and_then(|call| call.strip_prefix(CALL_PREFIX)) else { return };
    for prefix in EPISODE_PREFIXES {
        let id = format!("{prefix}{number}");
        if let Some(earlier) = traces::recent(state, caller, &id).await {
            request.options.continues = earlier.continued(policy, &request.conversation).map(Arc::new);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn fields_that_are_accepted_and_ignored_are_in_the_schema() {
        let schema = |schema| serde_json::to_value(schema).unwrap();
        assert_eq!(schema(ChatToolCall::schema())["properties"]["index"]["writeOnly"], true);
        assert!(schema(CalledFunction::schema())["properties"]["parsed_arguments"].is_object());
        let sent = r#"{"id":"call_1","type":"function","function":{"name":"look","arguments":"{}"}}"#;
        let mut call: Value = serde_json::from_str(sent).unwrap();
        call["index"] = Value::from(0);
        call["function"]["parsed_arguments"] = serde_json::json!({"city": null});
        let read: ChatToolCall = serde_json::from_value(call).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), sent);
    }
}
