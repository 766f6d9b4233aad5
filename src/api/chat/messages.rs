//! The messages of a request as a conversation.

use std::collections::HashSet;

use super::request::{ChatMessage, ChatRole, Content, ContentPart};
use super::tool::ToolCall;
use crate::agent::{Conversation, Message, Role};
use crate::api::error::ApiError;

/// The conversation that `messages` are.
///
/// # Errors
/// Names the message, and the part of it, that cannot be used.
pub(crate) fn conversation(messages: Vec<ChatMessage>) -> Result<Conversation, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` must hold at least one message"));
    }
    let mut ids = HashSet::new();
    let convert = |(at, message)| convert(at, message, &mut ids);
    let messages = messages.into_iter().enumerate().map(convert).collect::<Result<_, _>>()?;
    Ok(Conversation::from_messages(messages)?)
}

/// A message as the model is shown it. `ids` are those of the calls before it.
fn convert(at: usize, message: ChatMessage, ids: &mut HashSet<String>) -> Result<Message, ApiError> {
    let unsupported = |field: &str, what: &str| Err(ApiError::unsupported(&format!("messages[{at}].{field}"), what));
    let role = match message.role {
        ChatRole::Developer | ChatRole::System => Role::System,
        ChatRole::User => Role::User,
        ChatRole::Assistant => Role::Assistant,
        ChatRole::Tool => Role::Tool,
        ChatRole::Function => return unsupported("role", "functions other than as tools are"),
    };
    let empty = |value: &serde_json::Value| value.as_array().is_some_and(Vec::is_empty);
    let calls = called(at, role, message.tool_calls.unwrap_or_default(), ids)?;
    if message.function_call.is_some() {
        return unsupported("function_call", "functions other than as tools are");
    }
    answers(at, role, message.tool_call_id.as_deref(), ids)?;
    if message.name.is_some() {
        return unsupported("name", "speakers' names are");
    }
    if message.refusal.is_some() && role != Role::Assistant {
        return unsupported("refusal", "refusals by others than the assistant are");
    }
    if message.audio.is_some() {
        return unsupported("audio", "audio is");
    }
    if message.annotations.is_some_and(|notes| !empty(&notes)) {
        return unsupported("annotations", "annotations are");
    }
    let content = match message.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => joined(at, parts)?,
        None if role == Role::Assistant => String::new(),
        None => return Err(ApiError::missing(&format!("messages[{at}].content"))),
    };
    // An assistant either said something or refused to.
    match message.refusal.filter(|refusal| !refusal.is_empty()) {
        Some(_) if !content.is_empty() => unsupported("refusal", "refusals beside `content` are"),
        Some(refusal) => Ok(Message { calls, ..Message::new(role, refusal) }),
        None => Ok(Message { calls, ..Message::new(role, content) }),
    }
}

/// The calls of a message, whose ids join those before it.
fn called(
    at: usize,
    role: Role,
    calls: Vec<ToolCall>,
    ids: &mut HashSet<String>,
) -> Result<Vec<waymark_models::chat::ToolCall>, ApiError> {
    let param = format!("messages[{at}].tool_calls");
    if role != Role::Assistant && !calls.is_empty() {
        return Err(ApiError::unsupported(&param, "calls by others than the assistant are"));
    }
    let shown = |(index, call): (usize, ToolCall)| {
        ids.insert(call.id.clone());
        call.shown(&format!("{param}[{index}]"))
    };
    calls.into_iter().enumerate().map(shown).collect()
}

/// Whether a message says of which call it is the result, if it is one.
fn answers(at: usize, role: Role, id: Option<&str>, ids: &HashSet<String>) -> Result<(), ApiError> {
    let param = format!("messages[{at}].tool_call_id");
    match id {
        Some(id) if role == Role::Tool && ids.contains(id) => Ok(()),
        Some(_) if role == Role::Tool => {
            Err(ApiError::invalid(&param, format!("`{param}` names no call of an earlier message")))
        }
        Some(_) => Err(ApiError::unsupported(&param, "results by others than tools are")),
        None if role == Role::Tool => Err(ApiError::missing(&param)),
        None => Ok(()),
    }
}

/// The text of a message in parts.
fn joined(at: usize, parts: Vec<ContentPart>) -> Result<String, ApiError> {
    let mut text = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let param = format!("messages[{at}].content[{index}]");
        if part.kind != "text" {
            return Err(ApiError::unsupported(&param, &format!("parts of type `{}` are", part.kind)));
        }
        if let Some(field) = part.rest.keys().next() {
            return Err(ApiError::unknown(&format!("{param}.{field}")));
        }
        text += &part.text.ok_or_else(|| ApiError::missing(&format!("{param}.text")))?;
    }
    Ok(text)
}
