//! `text`: what the answer must be.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use waymark_models::grammar::Json;

use crate::api::chat::request::{FormatKind, NamedSchema};
use crate::api::error::ApiError;

/// How the answer is written.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextRequest {
    /// Its form; any text when not given.
    pub format: Option<TextFormat>,
}

/// The form of the answer. Thoughts and queries are free.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextFormat {
    /// Which kind.
    #[serde(rename = "type")]
    pub kind: FormatKind,
    /// What the schema is called: 1 to 64 letters, digits, `_` and `-`. Only of the kind `json_schema`, which needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    pub name: Option<String>,
    /// What the schema is for. Not put before the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The schema, draft 2020-12: an object of 64 KiB and 32 levels at most, without keywords that cannot be enforced. Only
    /// of the kind `json_schema`, which needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Schemas are always followed, whatever this says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

impl Default for TextFormat {
    fn default() -> Self {
        Self { kind: FormatKind::Text, name: None, description: None, schema: None, strict: None }
    }
}

impl TextFormat {
    /// What the answer must be; nothing where any text is welcome.
    ///
    /// # Errors
    /// Names what is missing, or what belongs to another kind.
    pub(super) fn shape(&self) -> Result<Option<Json>, ApiError> {
        let given = [
            ("name", self.name.is_some()),
            ("description", self.description.is_some()),
            ("schema", self.schema.is_some()),
            ("strict", self.strict.is_some()),
        ];
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
