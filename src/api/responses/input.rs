//! Items of the input of a request, as they are sent.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::body;
use crate::api::error::ApiError;

/// Message, or item of an earlier response.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputItem {
    /// Type of the item; defaults to `message`. Items of type `reasoning` and `file_search_call`, as this server
    /// returns them, are accepted, but the model does not see them again.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Role of the speaker.
    pub role: InputRole,
    /// Content of the message: text, or parts of type `input_text`, `output_text` and `text`.
    #[schema(value_type = InputContent)]
    pub content: Value,
    /// ID of an item of an earlier response.
    pub id: Option<String>,
    /// Status of an item of an earlier response.
    pub status: Option<String>,
    /// Must be null or `final_answer`.
    pub phase: Option<String>,
}

/// Call of a function in an earlier response.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputCall {
    /// Always `function_call`.
    #[serde(rename = "type")]
    pub kind: String,
    /// ID of the call, which the item with its result repeats.
    pub call_id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments: a JSON object, as text.
    pub arguments: String,
    /// Arguments as OpenAI's libraries keep them next to the text in calls that are sent back. Ignored.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub parsed_arguments: IgnoredAny,
    /// ID of the item.
    pub id: Option<String>,
    /// Status of the item.
    pub status: Option<String>,
}

/// Result of a call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputCallOutput {
    /// Always `function_call_output`.
    #[serde(rename = "type")]
    pub kind: String,
    /// ID of the call whose result this is.
    pub call_id: String,
    /// The result: text, or parts of type `input_text`.
    #[schema(value_type = InputContent)]
    pub output: Value,
    /// ID of the item.
    pub id: Option<String>,
    /// Status of the item.
    pub status: Option<String>,
}

/// Reference to an item of a stored response, in place of the item.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemReference {
    /// `item_reference`, which may be left out.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// ID of the item.
    pub id: String,
}

/// Role of the speaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputRole {
    /// Operator, under its current name.
    Developer,
    /// Operator.
    System,
    /// End user.
    User,
    /// Model.
    Assistant,
}

/// Question, or messages and items of earlier responses.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ResponsesInput)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum InputShape {
    /// Question.
    Text(String),
    /// Messages, and items of earlier responses.
    Items(Vec<InputEntry>),
}

/// Item of the input.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum InputEntry {
    /// Message, or an item without a meaning for the model.
    Message(InputItem),
    /// Call of a function.
    Call(InputCall),
    /// Result of a call.
    Output(InputCallOutput),
    /// Reference to an item.
    Reference(ItemReference),
}

/// Content of a message: text, or a list of parts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum InputContent {
    /// The text.
    Text(String),
    /// Its parts.
    Parts(Vec<InputPiece>),
}

/// Part of a message, or an earlier refusal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum InputPiece {
    /// Text.
    Text(InputPart),
    /// A refusal.
    Refusal(InputRefusal),
}

/// Part of a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputPart {
    /// `input_text`, `output_text` or `text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Text of the part.
    pub text: String,
    /// Citations of an earlier answer. The model does not see them again.
    #[schema(value_type = Option<Vec<Object>>)]
    pub annotations: Option<Value>,
    /// Tokens of an earlier answer. The model does not see them again.
    #[schema(value_type = Option<Vec<Object>>)]
    pub logprobs: Option<Value>,
    /// Answer as OpenAI's libraries parse it next to the text of messages that are sent back. Ignored.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub parsed: IgnoredAny,
}

/// Earlier refusal, as this server sent it.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputRefusal {
    /// Always `refusal`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Text of the refusal.
    pub refusal: String,
}

/// Concatenates the text of a message. `at` is its path in the request.
///
/// # Errors
/// Names the part that is not supported.
pub(super) fn text(content: Value, at: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::invalid(at, format!("`{at}` must be a string or a list of parts"))),
    };
    let mut text = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        match part.get("type").and_then(Value::as_str) {
            Some("input_text" | "output_text" | "text") => text += &body::read::<InputPart>(part, &at)?.text,
            Some("refusal") => text += &body::read::<InputRefusal>(part, &at)?.refusal,
            Some(kind) => return Err(ApiError::unsupported(&at, &format!("parts of type `{kind}` are"))),
            None => return Err(ApiError::invalid(&at, format!("`{at}`: a part has a `type`"))),
        }
    }
    Ok(text)
}
