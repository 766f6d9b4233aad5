//! The choice of some of a request's tools.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::tool::{ClientTools, NamedTool};
use crate::api::error::ApiError;

/// Choice of the tools that may be called.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AllowedTools {
    /// Type of the choice.
    #[serde(rename = "type")]
    pub kind: AllowedKind,
    /// The tools, and the mode for them.
    pub allowed_tools: AllowedSubset,
}

/// Type of a choice of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AllowedKind {
    /// Some of the tools.
    AllowedTools,
}

/// Tools that may be called, and the mode for them.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AllowedSubset {
    /// Mode for these tools.
    pub mode: AllowedMode,
    /// Some of the tools of the request. The model sees no others.
    #[schema(min_items = 1)]
    pub tools: Vec<NamedTool>,
}

/// Mode of calling some of the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AllowedMode {
    /// The model decides.
    Auto,
    /// Exactly one call of any of these tools, and no other output.
    Required,
}

impl AllowedSubset {
    /// Returns the part of `tools` that is allowed.
    ///
    /// # Errors
    /// Names the tool that is not among them.
    pub(super) fn of(self, tools: ClientTools) -> Result<ClientTools, ApiError> {
        const TOOLS: &str = "tool_choice.allowed_tools.tools";
        let named = self.tools.into_iter().enumerate();
        let names: Vec<(String, String)> =
            named.map(|(at, tool)| (format!("{TOOLS}[{at}].function.name"), tool.function.name)).collect();
        check_count(TOOLS, names.len())?;
        tools.allowed(&names, self.mode)
    }
}

/// Checks that a choice allows some tools. `param` is their path in the request.
pub(crate) fn check_count(param: &str, count: usize) -> Result<(), ApiError> {
    if count > 0 {
        return Ok(());
    }
    Err(ApiError::invalid(param, format!("`{param}` allows no tool: name one, or choose `none`")))
}

impl ClientTools {
    /// Keeps the tools with these names, each with its path in the request.
    ///
    /// # Errors
    /// Names the tool that is not among them.
    pub(crate) fn allowed(mut self, names: &[(String, String)], mode: AllowedMode) -> Result<ClientTools, ApiError> {
        for (param, name) in names {
            if !self.shown.iter().any(|tool| tool.name == *name) {
                return Err(ApiError::invalid(param, format!("`{param}`: there is no tool of the name `{name}`")));
            }
        }
        let kept = |name: &String| names.iter().any(|(_, allowed)| allowed == name);
        self.shown.retain(|tool| kept(&tool.name));
        self.strict.retain(kept);
        if mode == AllowedMode::Required {
            self.demanded = self.shown.iter().map(|tool| tool.name.clone()).collect();
        }
        Ok(self)
    }
}
