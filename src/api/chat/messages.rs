//! The messages of a request as a conversation.

use super::request::{ChatMessage, ChatRole, Content, ContentPart};
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
    let messages =
        messages.into_iter().enumerate().map(|(at, message)| convert(at, message)).collect::<Result<_, _>>()?;
    Ok(Conversation::from_messages(messages)?)
}

fn convert(at: usize, message: ChatMessage) -> Result<Message, ApiError> {
    let unsupported = |field: &str, what: &str| Err(ApiError::unsupported(&format!("messages[{at}].{field}"), what));
    let role = match message.role {
        ChatRole::Developer | ChatRole::System => Role::System,
        ChatRole::User => Role::User,
        ChatRole::Assistant => Role::Assistant,
        ChatRole::Tool | ChatRole::Function => return unsupported("role", "tools are"),
    };
    let empty = |value: &serde_json::Value| value.as_array().is_some_and(Vec::is_empty);
    if message.tool_calls.is_some_and(|calls| !empty(&calls)) {
        return unsupported("tool_calls", "tools are");
    }
    if message.function_call.is_some() {
        return unsupported("function_call", "tools are");
    }
    if message.tool_call_id.is_some() {
        return unsupported("tool_call_id", "tools are");
    }
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
        Some(refusal) => Ok(Message::new(role, refusal)),
        None => Ok(Message::new(role, content)),
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
