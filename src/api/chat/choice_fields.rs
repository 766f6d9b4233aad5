//! Fields of a choice between tools.

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error;

use super::allowed_tools::{AllowedKind, AllowedSubset, AllowedTools};
use super::tool::{NamedFunction, NamedTool, ToolChoice, ToolKind, ToolMode};
use crate::api::text_or::{InPlaceOfText, TextOr};

/// Fields of a choice of any type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChoiceFields {
    #[serde(rename = "type")]
    kind: ChoiceKind,
    function: Option<NamedFunction>,
    allowed_tools: Option<AllowedSubset>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChoiceKind {
    Function,
    AllowedTools,
}

impl InPlaceOfText for ChoiceFields {
    const EXPECTED: &'static str = "`none`, `auto`, `required`, a function by its name, or `allowed_tools`";
}

impl TryFrom<TextOr<ChoiceFields>> for ToolChoice {
    /// Message in the form of serde's own, from which the field is known.
    type Error = String;

    fn try_from(choice: TextOr<ChoiceFields>) -> Result<ToolChoice, String> {
        let fields = match choice {
            TextOr::Text(mode) => {
                let mode = ToolMode::deserialize(mode.into_deserializer());
                return mode.map(ToolChoice::Mode).map_err(|error: Error| error.to_string());
            }
            TextOr::Other(fields) => fields,
        };
        match fields {
            ChoiceFields { kind: ChoiceKind::Function, function: Some(function), allowed_tools: None } => {
                Ok(ToolChoice::Named(NamedTool { kind: ToolKind::Function, function }))
            }
            ChoiceFields { kind: ChoiceKind::AllowedTools, function: None, allowed_tools: Some(allowed_tools) } => {
                Ok(ToolChoice::Allowed(AllowedTools { kind: AllowedKind::AllowedTools, allowed_tools }))
            }
            ChoiceFields { kind: ChoiceKind::Function, function: None, .. } => {
                Err("missing field `function`".to_owned())
            }
            ChoiceFields { kind: ChoiceKind::Function, .. } => Err("unknown field `allowed_tools`".to_owned()),
            ChoiceFields { function: Some(_), .. } => Err("unknown field `function`".to_owned()),
            ChoiceFields { .. } => Err("missing field `allowed_tools`".to_owned()),
        }
    }
}
