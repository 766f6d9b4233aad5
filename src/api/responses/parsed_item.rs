//! Items of an input in the form in which they become messages.

use serde_json::{Value, json};
use uuid::Uuid;
use waymark_agent::{ConversationMessage, Role};
use waymark_models::chat::ToolCall;

use super::input::{self, InputCall, InputCallOutput, InputItem, InputRole};
use crate::api::body;
use crate::api::chat::tool::CalledFunction;
use crate::api::error::ApiError;

/// Item of an input.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) enum ParsedItem {
    /// Message.
    Message(ConversationMessage),
    /// Call of a function.
    Call {
        /// ID of the call.
        id: String,
        /// The call, as the chat template takes it.
        call: ToolCall,
    },
    /// Result of a call.
    Output {
        /// ID of the call.
        id: String,
        /// The result.
        text: String,
    },
    /// Reasoning or search of an earlier response. The model does not see it again.
    Unseen(Value),
}

impl ParsedItem {
    /// Parses an item. `at` is its path in the request.
    ///
    /// # Errors
    /// Names the field in it that cannot be used.
    pub(in crate::api) fn read(item: Value, at: &str) -> Result<ParsedItem, ApiError> {
        match item.get("type") {
            None | Some(Value::Null) => ParsedItem::message(item, at),
            Some(Value::String(kind)) => match kind.as_str() {
                "message" => ParsedItem::message(item, at),
                "function_call" => ParsedItem::call(item, at),
                "function_call_output" => ParsedItem::output(item, at),
                // As with `previous_response_id`, a conversation continues only texts, calls and results.
                "reasoning" | "file_search_call" => Ok(ParsedItem::Unseen(item)),
                kind => Err(ApiError::unsupported(at, &format!("items of type `{kind}` are"))),
            },
            Some(_) => Err(ApiError::invalid(&format!("{at}.type"), format!("`{at}.type` must be a string"))),
        }
    }

    fn message(item: Value, at: &str) -> Result<ParsedItem, ApiError> {
        let item: InputItem = body::read(item, at)?;
        if item.phase.is_some_and(|phase| phase != "final_answer") {
            return Err(ApiError::unsupported(&format!("{at}.phase"), "phases other than `final_answer` are"));
        }
        let role = match item.role {
            // `developer` is OpenAI's newer name of the role; chat templates know the older one.
            InputRole::Developer | InputRole::System => Role::System,
            InputRole::User => Role::User,
            InputRole::Assistant => Role::Assistant,
        };
        let text = input::text(item.content, &format!("{at}.content"))?;
        Ok(ParsedItem::Message(ConversationMessage::new(role, text)))
    }

    fn call(item: Value, at: &str) -> Result<ParsedItem, ApiError> {
        let InputCall { call_id, name, arguments, .. } = body::read(item, at)?;
        Ok(ParsedItem::Call { id: call_id, call: CalledFunction::new(name, arguments).shown(at)? })
    }

    fn output(item: Value, at: &str) -> Result<ParsedItem, ApiError> {
        let InputCallOutput { call_id, output, .. } = body::read(item, at)?;
        Ok(ParsedItem::Output { id: call_id, text: input::text(output, &format!("{at}.output"))? })
    }

    /// Returns the item as it is listed, with an ID of its own.
    pub(in crate::api) fn listed(&self) -> Value {
        let id = |prefix: &str| format!("{prefix}_{}", Uuid::now_v7().simple());
        match self {
            ParsedItem::Message(message) => {
                let text = &message.content;
                // The lists are required in OpenAI's interface, whose clients may read them without a check.
                let part = match message.role {
                    Role::Assistant => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
                    _ => json!({"type": "input_text", "text": text}),
                };
                json!({
                    "type": "message",
                    "id": id("msg"),
                    "status": "completed",
                    "role": message.role,
                    "content": [part],
                })
            }
            ParsedItem::Call { id: call_id, call } => json!({
                "type": "function_call",
                "id": id("fc"),
                "call_id": call_id,
                "name": call.name,
                // OpenAI's interface carries arguments as text.
                "arguments": call.arguments.as_str(),
                "status": "completed",
            }),
            ParsedItem::Output { id: call_id, text } => json!({
                "type": "function_call_output",
                "id": id("fco"),
                "call_id": call_id,
                "output": text,
                "status": "completed",
            }),
            ParsedItem::Unseen(item) => {
                let mut item = item.clone();
                item["id"] = id(if item["type"] == "reasoning" { "rs" } else { "fs" }).into();
                item
            }
        }
    }

    /// Returns `true` if the model sees the item.
    pub(in crate::api) fn is_seen(&self) -> bool {
        !matches!(self, ParsedItem::Unseen(_))
    }

    /// Returns `true` if results before the item and results after it are not consecutive.
    pub(super) fn ends_results(&self) -> bool {
        matches!(self, ParsedItem::Message(_) | ParsedItem::Call { .. })
    }

    /// Returns the size of the text that the model sees, in bytes.
    pub(in crate::api) fn seen_bytes(&self) -> usize {
        match self {
            ParsedItem::Message(message) => message.content.len(),
            ParsedItem::Call { call, .. } => call.bytes(),
            ParsedItem::Output { text, .. } => text.len(),
            ParsedItem::Unseen(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn listed_items_are_read_again_as_the_same() {
        for item in [
            json!({"role": "user", "content": [{"type": "input_text", "text": "hel"}, {"type": "text", "text": "lo"}]}),
            json!({"role": "assistant", "content": "hello"}),
            json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{\"a\": 1}"}),
            json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": ""}),
            json!({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]}),
        ] {
            let parsed = ParsedItem::read(item, "input[0]").unwrap();
            assert_eq!(ParsedItem::read(parsed.listed(), "input[0]").unwrap(), parsed);
            assert!(parsed.is_seen());
        }
        let large = r#"{"id":123456789012345678901234}"#;
        let call = json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": large});
        assert_eq!(ParsedItem::read(call, "input[0]").unwrap().listed()["arguments"], large);
        let unseen = ParsedItem::read(json!({"type": "reasoning", "id": "mine", "summary": []}), "input[0]").unwrap();
        assert!(!unseen.is_seen() && unseen.listed()["id"].as_str().unwrap().starts_with("rs_"));
    }

    #[test]
    fn what_libraries_add_to_items_is_passed_over() {
        let message = |part: Value| json!({"role": "assistant", "content": [part]});
        let call = json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"});
        let mut parsed_call = call.clone();
        parsed_call["parsed_arguments"] = json!({"city": null});
        for (sent, plain) in [
            (
                message(json!({"type": "output_text", "text": "{}", "parsed": {"a": [1]}})),
                message(json!({"type": "output_text", "text": "{}"})),
            ),
            (
                message(json!({"type": "output_text", "text": "{}", "parsed": null})),
                message(json!({"type": "output_text", "text": "{}"})),
            ),
            (parsed_call, call),
        ] {
            let read = |item: Value| ParsedItem::read(item, "input[0]").unwrap();
            assert_eq!(read(sent), read(plain));
        }
    }

    #[test]
    fn the_field_at_fault_is_named() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(124), "]".repeat(124));
        for (item, param) in [
            (json!({"type": "function_call", "call_id": "c", "name": "a b", "arguments": "{}"}), "at.name"),
            (json!({"type": "function_call", "call_id": "c", "name": "a", "arguments": "[]"}), "at.arguments"),
            (json!({"type": "function_call", "call_id": "c", "name": "a", "arguments": deep}), "at.arguments"),
            (json!({"type": "function_call", "name": "a", "arguments": "{}"}), "at.call_id"),
            (json!({"type": "function_call_output", "call_id": "c"}), "at.output"),
            (json!({"type": "function_call_output", "call_id": "c", "output": 3}), "at.output"),
            (json!({"type": "function_call_output", "call_id": "c", "output": "", "color": 1}), "at.color"),
            (json!({"type": "computer_call"}), "at"),
            (json!({"type": 3}), "at.type"),
        ] {
            let refused = ParsedItem::read(item.clone(), "at").unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(param), "{item}");
        }
    }
}
