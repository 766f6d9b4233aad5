//! The messages of a request as a conversation.

use std::collections::HashMap;

use super::request::{ChatMessage, ChatRole, Content, ContentPart};
use super::tool::ToolCall;
use crate::agent::{Conversation, Message, Role};
use crate::api::error::ApiError;

/// The calls of a conversation up to some message.
#[derive(Debug, Default)]
struct Calls {
    made: usize,
    /// By their ids the numbers of those whose result has not come yet.
    open: HashMap<String, usize>,
}

/// The conversation that `messages` are. Neighbouring results of calls stand in the order of the calls, for a model is told
/// by their places alone which is whose.
///
/// # Errors
/// Names the message, and the part of it, that cannot be used.
pub(crate) fn conversation(messages: Vec<ChatMessage>) -> Result<Conversation, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` must hold at least one message"));
    }
    let mut calls = Calls::default();
    let convert = |(at, message): (usize, ChatMessage)| -> Result<(Option<usize>, Message), ApiError> {
        let answered = answered(at, &message, &mut calls)?;
        Ok((answered, convert(at, message, &mut calls)?))
    };
    let mut messages = messages.into_iter().enumerate().map(convert).collect::<Result<Vec<_>, _>>()?;
    for results in messages.chunk_by_mut(|(one, _), (next, _)| one.is_some() && next.is_some()) {
        results.sort_by_key(|(call, _)| *call);
    }
    Ok(Conversation::from_messages(messages.into_iter().map(|(_, message)| message).collect())?)
}

/// A message as the model is shown it, whose calls join those before it.
fn convert(at: usize, message: ChatMessage, known: &mut Calls) -> Result<Message, ApiError> {
    let unsupported = |field: &str, what: &str| Err(ApiError::unsupported(&format!("messages[{at}].{field}"), what));
    let role = match message.role {
        ChatRole::Developer | ChatRole::System => Role::System,
        ChatRole::User => Role::User,
        ChatRole::Assistant => Role::Assistant,
        ChatRole::Tool => Role::Tool,
        ChatRole::Function => return unsupported("role", "functions other than as tools are"),
    };
    let empty = |value: &serde_json::Value| value.as_array().is_some_and(Vec::is_empty);
    let calls = called(at, role, message.tool_calls.unwrap_or_default(), known)?;
    if message.function_call.is_some() {
        return unsupported("function_call", "functions other than as tools are");
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
        Some(refusal) => Ok(Message { calls, ..Message::new(role, refusal) }),
        None => Ok(Message { calls, ..Message::new(role, content) }),
    }
}

/// The calls of a message, which join those before it.
fn called(
    at: usize,
    role: Role,
    calls: Vec<ToolCall>,
    known: &mut Calls,
) -> Result<Vec<waymark_models::chat::ToolCall>, ApiError> {
    let param = format!("messages[{at}].tool_calls");
    if role != Role::Assistant && !calls.is_empty() {
        return Err(ApiError::unsupported(&param, "calls by others than the assistant are"));
    }
    let shown = |(index, call): (usize, ToolCall)| {
        let param = format!("{param}[{index}]");
        if known.open.insert(call.id.clone(), known.made).is_some() {
            let param = format!("{param}.id");
            return Err(ApiError::invalid(&param, format!("`{param}`: another call of this id waits for its result")));
        }
        known.made += 1;
        call.shown(&param)
    };
    calls.into_iter().enumerate().map(shown).collect()
}

/// The number of the call whose result a message is, if it is one. A call has one result.
fn answered(at: usize, message: &ChatMessage, known: &mut Calls) -> Result<Option<usize>, ApiError> {
    let param = format!("messages[{at}].tool_call_id");
    match (&message.tool_call_id, message.role) {
        (Some(id), ChatRole::Tool) => {
            let unknown = || format!("`{param}` names no call of an earlier message that waits for its result");
            known.open.remove(id).map(Some).ok_or_else(|| ApiError::invalid(&param, unknown()))
        }
        (Some(_), _) => Err(ApiError::unsupported(&param, "results by others than tools are")),
        (None, ChatRole::Tool) => Err(ApiError::missing(&param)),
        (None, _) => Ok(None),
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
