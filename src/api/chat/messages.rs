//! Converts the messages of a chat request to a conversation.

use waymark_agent::{Conversation, ConversationMessage, Role};

use super::request::{ChatMessage, ChatRole, ContentPart, MessageContent};
use super::tool::ChatToolCall;
use crate::api::call_history::{CallHistory, CallPosition, PairedMessage, in_call_order, unanswered};
use crate::api::error::ApiError;

/// Converts `messages` to a conversation. Consecutive tool results are sorted into the order of their calls, because
/// the chat template matches results to calls by position alone.
///
/// # Errors
/// Names the message, and the field in it, that cannot be used.
pub(crate) fn conversation(messages: Vec<ChatMessage>) -> Result<Conversation, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` must hold at least one message"));
    }
    let mut calls = CallHistory::default();
    let mut converted = Vec::with_capacity(messages.len());
    for (at, message) in messages.into_iter().enumerate() {
        let result = answered(at, &message, &mut calls)?;
        if result.is_none() {
            check_results(&calls, &converted)?;
        }
        converted.push((result, convert(at, message, &mut calls)?));
    }
    check_results(&calls, &converted)?;
    Ok(Conversation::from_messages(in_call_order(converted))?)
}

/// Checks that none of the results at the end of `messages` would be shown in the place of an earlier call's.
fn check_results(calls: &CallHistory, messages: &[PairedMessage]) -> Result<(), ApiError> {
    match calls.open_before_last(messages) {
        Some((at, id)) => Err(unanswered(&format!("messages[{at}].tool_calls"), id)),
        None => Ok(()),
    }
}

/// Returns the ID of the call whose result is the last message, if it is one.
pub(super) fn last_call(messages: &[ChatMessage]) -> Option<&str> {
    messages.last()?.tool_call_id.as_deref()
}

/// Converts one message to the form that the chat template takes, and adds its tool calls to `known`.
fn convert(at: usize, message: ChatMessage, known: &mut CallHistory) -> Result<ConversationMessage, ApiError> {
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
        Some(MessageContent::Text(text)) => text,
        Some(MessageContent::Parts(parts)) => joined(at, parts)?,
        // A message that only calls tools has no content.
        None if role == Role::Assistant => String::new(),
        None => return Err(ApiError::missing(&format!("messages[{at}].content"))),
    };
    // A message of the assistant holds either content or a refusal, never both.
    match message.refusal.filter(|refusal| !refusal.is_empty()) {
        Some(_) if !content.is_empty() => unsupported("refusal", "refusals together with `content` are"),
        Some(refusal) => Ok(ConversationMessage { calls, ..ConversationMessage::new(role, refusal) }),
        None => Ok(ConversationMessage { calls, ..ConversationMessage::new(role, content) }),
    }
}

/// Converts the tool calls of a message and adds them to `known`.
fn called(
    at: usize,
    role: Role,
    calls: Vec<ChatToolCall>,
    known: &mut CallHistory,
) -> Result<Vec<waymark_models::chat::ToolCall>, ApiError> {
    let param = format!("messages[{at}].tool_calls");
    if role != Role::Assistant && !calls.is_empty() {
        return Err(ApiError::unsupported(&param, "calls by others than the assistant are"));
    }
    let shown = |(index, call): (usize, ChatToolCall)| {
        let param = format!("{param}[{index}]");
        if !known.add(&call.id, at) {
            let param = format!("{param}.id");
            return Err(ApiError::invalid(&param, format!("`{param}`: another call of this id waits for its result")));
        }
        call.shown(&param)
    };
    calls.into_iter().enumerate().map(shown).collect()
}

/// Returns the position of the call whose result the message is, if it is a tool result. A call has exactly one result.
fn answered(at: usize, message: &ChatMessage, known: &mut CallHistory) -> Result<Option<CallPosition>, ApiError> {
    let param = format!("messages[{at}].tool_call_id");
    match (&message.tool_call_id, message.role) {
        (Some(id), ChatRole::Tool) => {
            let unknown = || format!("`{param}` names no call of an earlier message that waits for its result");
            known.answer(id).map(Some).ok_or_else(|| ApiError::invalid(&param, unknown()))
        }
        (Some(_), _) => Err(ApiError::unsupported(&param, "results by others than tools are")),
        (None, ChatRole::Tool) => Err(ApiError::missing(&param)),
        (None, _) => Ok(None),
    }
}

/// Concatenates the text parts of a message.
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
