//! The `text` option: format of the answer.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use waymark_models::grammar::Json;

use crate::api::chat::request::{FormatKind, NamedSchema};
use crate::api::error::ApiError;

/// Text options of a request.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextRequest {
    /// Format of the answer; defaults to any text.
    pub format: Option<TextFormat>,
    /// Hint without effect, returned with the response: a policy answers as it was trained to.
    pub verbosity: Option<String>,
}

/// Format of the answer. It does not apply to reasoning and queries.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextFormat {
    /// Kind of format.
    #[serde(rename = "type")]
    pub kind: FormatKind,
    /// Name of the schema: 1 to 64 letters, digits, `_` and `-`. Required for the kind `json_schema`, refused
    /// otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    pub name: Option<String>,
    /// Description of the schema. The model does not see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema, draft 2020-12: an object of at most 64 KiB and 32 levels, without keywords that cannot be enforced.
    /// Required for the kind `json_schema`, refused otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Ignored: schemas are always enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

impl Default for TextFormat {
    fn default() -> Self {
        Self { kind: FormatKind::Text, name: None, description: None, schema: None, strict: None }
    }
}

impl TextFormat {
    /// Returns the constraint on the answer. `None` allows any text.
    ///
    /// # Errors
    /// Names the field that is missing, or that belongs to another kind.
    pub(super) fn shape(&self) -> Result<Option<Json>, ApiError> {
        let given = [
            ("name", self.name.is_some()),
            ("description", self.description.is_some()),
            ("schema", self.schema.is_some()),
            ("strict", self.strict.is_some()),
        ];
        // A field of another kind would have no effect, which its client would not notice.
        let other = given.iter().find(|(_, given)| *given).map(|(name, _)| format!("text.format.{name}"));
        match (self.kind, other) {
            (FormatKind::Text, None) => Ok(None),
            (FormatKind::JsonObject, None) => Ok(Some(Json::Object)),
            (FormatKind::JsonSchema, _) => {
                let name = self.name.as_deref().ok_or_else(|| ApiError::missing("text.format.name"))?;
                NamedSchema::check_name("text.format.name", name)?;
                Ok(Some(Json::Schema(self.schema.clone().ok_or_else(|| ApiError::missing("text.format.schema"))?)))
            }
            (FormatKind::Text | FormatKind::JsonObject, Some(param)) => {
                Err(ApiError::invalid(&param, format!("`{param}` needs the type `json_schema`")))
            }
        }
    }
}
