//! Converts the input of a request to messages.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;
use waymark_agent::{ConversationMessage, Role};

use super::request::ResponsesInput;
use crate::api::body;
use crate::api::error::ApiError;

/// Message, or item of an earlier response.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputItem {
    /// Type of the item; defaults to `message`. Items of type `reasoning` and `file_search_call`, as this server
    /// returns them, are accepted, but the model does not see them again; all other types are refused.
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
    Items(Vec<InputItem>),
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

/// Converts `input` to messages, oldest first.
///
/// # Errors
/// Names the item, and the field in it, that cannot be used.
pub(super) fn messages(input: ResponsesInput) -> Result<Vec<ConversationMessage>, ApiError> {
    match input {
        ResponsesInput::Text(text) => Ok(vec![ConversationMessage::new(Role::User, text)]),
        ResponsesInput::Items(items) => {
            let each = items.into_iter().enumerate().map(|(at, item)| message(item, &format!("input[{at}]")));
            each.filter_map(Result::transpose).collect()
        }
    }
}

/// Converts messages to items, each with an ID of its own.
pub(in crate::api) fn items(messages: &[ConversationMessage]) -> Vec<Value> {
    let item = |message: &ConversationMessage| {
        let kind = if message.role == Role::Assistant { "output_text" } else { "input_text" };
        json!({
            "type": "message",
            "id": format!("msg_{}", Uuid::now_v7().simple()),
            "status": "completed",
            "role": message.role,
            "content": [{"type": kind, "text": message.content}],
        })
    };
    messages.iter().map(item).collect()
}

/// Converts an item to a message. `None` for reasoning and searches of earlier responses.
pub(in crate::api) fn message(item: Value, at: &str) -> Result<Option<ConversationMessage>, ApiError> {
    match item.get("type") {
        None | Some(Value::Null) => {}
        Some(Value::String(kind)) if kind == "message" => {}
        // As with `previous_response_id`, a conversation continues only the texts of answers.
        Some(Value::String(kind)) if kind == "reasoning" || kind == "file_search_call" => return Ok(None),
        Some(Value::String(kind)) => return Err(ApiError::unsupported(at, &format!("items of type `{kind}` are"))),
        Some(_) => return Err(ApiError::invalid(&format!("{at}.type"), format!("`{at}.type` must be a string"))),
    }
    let item: InputItem = body::read(item, at)?;
    if item.phase.is_some_and(|phase| phase != "final_answer") {
        return Err(ApiError::unsupported(&format!("{at}.phase"), "phases other than `final_answer` are"));
    }
    let role = match item.role {
        InputRole::Developer | InputRole::System => Role::System,
        InputRole::User => Role::User,
        InputRole::Assistant => Role::Assistant,
    };
    Ok(Some(ConversationMessage::new(role, text(item.content, &format!("{at}.content"))?)))
}

fn text(content: Value, at: &str) -> Result<String, ApiError> {
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
