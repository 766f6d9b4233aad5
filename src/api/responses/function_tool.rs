//! Tools of the type `function`, and the choice between tools.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::body;
use crate::api::chat::allowed_tools::{AllowedMode, check_count};
use crate::api::chat::tool::{
    ClientTools, FunctionDefinition, NamedFunction, NamedTool, ToolChoice, ToolKind, ToolMode,
};
use crate::api::error::ApiError;

/// Function of the client that the policy may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionTool {
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the function: 1 to 64 letters, digits, `_` and `-`.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    pub name: String,
    /// Purpose of the function, shown to the model.
    pub description: Option<String>,
    /// JSON schema of the arguments, which form an object. Shown to the model. Enforced if `tool_choice` demands a call
    /// or `strict` is set, with the limits of `text.format`.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// If `true`, every call of this function follows the schema, and an answer holds at most one call. Defaults to
    /// `false`.
    pub strict: Option<bool>,
}

/// Function of which exactly one call is demanded.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChosenFunction {
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the function.
    pub name: String,
}

/// Choice of the tools that may be used.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponsesAllowedTools)]
#[serde(deny_unknown_fields)]
pub struct AllowedChoice {
    /// Always `allowed_tools`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Mode for these tools.
    pub mode: AllowedMode,
    /// Some of the tools of the request. The model sees no other functions, and a `file_search` that the request lists
    /// and the choice does not is not used.
    #[schema(min_items = 1)]
    pub tools: Vec<AllowedTool>,
}

/// Tool that may be used.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponsesAllowedTool)]
#[serde(deny_unknown_fields)]
pub struct AllowedTool {
    /// `function`, or in the mode `auto` also `file_search`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the function.
    pub name: Option<String>,
}

/// Choice between tools.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponsesToolChoice)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum ToolChoiceShape {
    /// Choice for all tools.
    Mode(ToolMode),
    /// Exactly one call of this function, in place of an answer.
    Function(ChosenFunction),
    /// Some of the tools.
    Allowed(AllowedChoice),
}

/// Tools of a request that the policy may use.
#[derive(Debug)]
pub(super) struct ChosenTools {
    /// Functions of the client.
    pub(super) tools: ClientTools,
    /// If `true`, the policy may search.
    pub(super) searches: bool,
}

/// Functions of a request.
#[derive(Debug, Default)]
pub(super) struct FunctionTools {
    /// Functions, each with its path in the request.
    functions: Vec<(String, FunctionDefinition)>,
}

impl FunctionTools {
    /// Adds a function. `at` is its path in the request. Returns the tool as the response lists it.
    ///
    /// # Errors
    /// Names the field in it that is not supported.
    pub(super) fn add(&mut self, tool: Value, at: &str) -> Result<Value, ApiError> {
        let FunctionTool { name, description, parameters, strict, .. } = body::read(tool, at)?;
        let listed = json!({
            "type": "function",
            "name": name,
            "description": description,
            "parameters": parameters,
            "strict": strict.unwrap_or(false),
        });
        self.functions.push((at.to_owned(), FunctionDefinition { name, description, parameters, strict }));
        Ok(listed)
    }

    /// Validates the functions and the choice between them. `has_search_tool` is `true` if the request lists the search
    /// tool.
    ///
    /// # Errors
    /// Names the function or the choice that is not supported. No policy can be forced to search.
    pub(super) fn choose(self, choice: Option<&Value>, has_search_tool: bool) -> Result<ChosenTools, ApiError> {
        let allows = |choice: &&Value| choice.get("type").is_some_and(|kind| kind == "allowed_tools");
        if let Some(choice) = choice.filter(allows) {
            return self.allowed(body::read(choice.clone(), "tool_choice")?, has_search_tool);
        }
        let mode = match choice {
            None => ToolChoice::Mode(ToolMode::Auto),
            Some(Value::String(mode)) if mode == "auto" => ToolChoice::Mode(ToolMode::Auto),
            Some(Value::String(mode)) if mode == "none" => ToolChoice::Mode(ToolMode::None),
            // Without functions, `required` would demand a search, and no policy can be forced to search.
            Some(Value::String(mode)) if mode == "required" && !self.functions.is_empty() => {
                ToolChoice::Mode(ToolMode::Required)
            }
            Some(named) if named.get("type").is_some_and(|kind| kind == "function") => {
                let ChosenFunction { name, .. } = body::read(named.clone(), "tool_choice")?;
                ToolChoice::Named(NamedTool { kind: ToolKind::Function, function: NamedFunction { name } })
            }
            Some(_) => {
                let what = "choices other than `auto`, `none`, `required` together with functions, a function by its name, and `allowed_tools` are";
                return Err(ApiError::unsupported("tool_choice", what));
            }
        };
        // A demanded call takes the place of the answer and leaves searches to the policy.
        let searches = !matches!(mode, ToolChoice::Mode(ToolMode::None));
        let tools = ClientTools::of_functions(self.functions, Some(mode))
            .map_err(|error| error.renamed("tool_choice.function.name", "tool_choice.name"))?;
        Ok(ChosenTools { tools, searches })
    }

    fn allowed(self, choice: AllowedChoice, has_search_tool: bool) -> Result<ChosenTools, ApiError> {
        const TOOLS: &str = "tool_choice.tools";
        let AllowedChoice { mode, tools, .. } = choice;
        check_count(TOOLS, tools.len())?;
        let mut names = Vec::new();
        let mut searches = !has_search_tool;
        for (at, AllowedTool { kind, name }) in tools.into_iter().enumerate() {
            let param = format!("{TOOLS}[{at}]");
            match (kind.as_str(), name) {
                ("function", Some(name)) => names.push((format!("{param}.name"), name)),
                ("function", None) => {
                    let param = format!("{param}.name");
                    return Err(ApiError::invalid(&param, format!("`{param}`: a function is allowed by its name")));
                }
                ("file_search", _) if mode == AllowedMode::Required => {
                    return Err(ApiError::unsupported(&param, "searches in the mode `required` are"));
                }
                ("file_search", _) if !has_search_tool => {
                    let message = format!("`{param}`: there is no `file_search` in `tools`");
                    return Err(ApiError::invalid(&param, message));
                }
                ("file_search", _) => searches = true,
                (kind, _) => return Err(ApiError::unsupported(&param, &format!("tools of type `{kind}` are"))),
            }
        }
        let functions = ClientTools::of_functions(self.functions, None)?;
        Ok(ChosenTools { tools: functions.allowed(&names, mode)?, searches })
    }
}
