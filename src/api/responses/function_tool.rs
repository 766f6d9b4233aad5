//! Tools of the type `function`, and the choice between tools.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::body;
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
}

/// Functions of a request.
#[derive(Debug, Default)]
pub(super) struct FunctionTools {
    /// Functions, each beside its path in the request.
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

    /// Validates the functions and the choice between them. Returns them, and `true` if the policy may search.
    ///
    /// # Errors
    /// Names the function or the choice that is not supported. No policy can be forced to search.
    pub(super) fn chosen(self, choice: Option<&Value>) -> Result<(ClientTools, bool), ApiError> {
        let mode = match choice {
            None => ToolChoice::Mode(ToolMode::Auto),
            Some(Value::String(mode)) if mode == "auto" => ToolChoice::Mode(ToolMode::Auto),
            Some(Value::String(mode)) if mode == "none" => ToolChoice::Mode(ToolMode::None),
            // Without functions it would demand a search, and no policy can be forced to search.
            Some(Value::String(mode)) if mode == "required" && !self.functions.is_empty() => {
                ToolChoice::Mode(ToolMode::Required)
            }
            Some(named) if named.get("type").is_some_and(|kind| kind == "function") => {
                let ChosenFunction { name, .. } = body::read(named.clone(), "tool_choice")?;
                ToolChoice::Named(NamedTool { kind: ToolKind::Function, function: NamedFunction { name } })
            }
            Some(_) => {
                let what =
                    "choices other than `auto`, `none`, `required` beside functions, and a function by its name are";
                return Err(ApiError::unsupported("tool_choice", what));
            }
        };
        // A demanded call takes the place of the answer and leaves searches to the policy.
        let searches = !matches!(mode, ToolChoice::Mode(ToolMode::None));
        let tools = ClientTools::of_functions(self.functions, Some(mode))
            .map_err(|error| error.renamed("tool_choice.function.name", "tool_choice.name"))?;
        Ok((tools, searches))
    }
}
