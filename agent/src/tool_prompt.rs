//! Tools, calls and results as plain text, for prompts without a form of their own for them: those of chat templates
//! that know no tools in the form of Hermes, and those of protocols that use no template.

use serde_json::json;
use waymark_models::chat::{Tool, ToolCall};

use super::conversation::{Conversation, ConversationMessage, Role};
use super::tool_call::{CLOSE, OPEN};

/// Returns the conversation with its tools described in the system message, and its calls and results written between
/// tags.
pub(super) fn described(conversation: &Conversation) -> Conversation {
    let mut messages: Vec<ConversationMessage> = conversation.messages().iter().map(written).collect();
    if !conversation.tools().is_empty() {
        let text = description(conversation.tools());
        match messages.first_mut().filter(|message| message.role == Role::System) {
            Some(system) => system.content = format!("{}\n\n{text}", system.content),
            None => messages.insert(0, ConversationMessage::new(Role::System, text)),
        }
    }
    conversation.reworded(messages)
}

fn description(tools: &[Tool]) -> String {
    let lines: Vec<String> =
        tools.iter().map(|tool| json!({"type": "function", "function": tool}).to_string()).collect();
    format!(
        "You may call these functions, described by one JSON object each:\n<tools>\n{}\n</tools>\nTo call one, write its \
         name and its arguments as JSON between tags:\n{OPEN}\n{{\"name\": \"name of the function\", \"arguments\": {{}}}}\n{CLOSE}",
        lines.join("\n")
    )
}

/// Returns a message with its calls as text; a result becomes a message of the user.
pub(super) fn written(message: &ConversationMessage) -> ConversationMessage {
    match message.role {
        Role::Tool => {
            let text = format!("<tool_response>\n{}\n</tool_response>", message.content);
            ConversationMessage::new(Role::User, text)
        }
        role => {
            let calls = message.calls.iter().map(call).collect::<Vec<_>>().join("\n");
            let gap = if message.content.is_empty() || calls.is_empty() { "" } else { "\n" };
            ConversationMessage::new(role, format!("{}{gap}{calls}", message.content))
        }
    }
}

fn call(call: &ToolCall) -> String {
    format!("{OPEN}\n{{\"name\":{},\"arguments\":{}}}\n{CLOSE}", json!(call.name), call.arguments)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::chat::Arguments;

    use super::*;

    fn look() -> Tool {
        Tool { name: "look".to_owned(), description: None, parameters: None }
    }

    #[test]
    fn tools_calls_and_results_become_text() {
        let arguments = Arguments::parse(r#"{"id": 18446744073709551617}"#).unwrap();
        let call = ToolCall { name: "look".to_owned(), arguments };
        let called = ConversationMessage { calls: vec![call], ..ConversationMessage::new(Role::Assistant, "Hm.") };
        let chat =
            vec![ConversationMessage::new(Role::User, "Look."), called, ConversationMessage::new(Role::Tool, "a wall")];
        let conversation = Conversation::from_messages(chat).unwrap().with_tools(vec![look()]);
        let plain = described(&conversation);
        let [system, user, assistant, result] = plain.messages() else { panic!("{:?}", plain.messages()) };
        assert!(system.role == Role::System && system.content.contains("\"name\":\"look\""), "{system:?}");
        assert_eq!((plain.question(), user.content.as_str()), ("Look.", "Look."));
        let text = "Hm.\n<tool_call>\n{\"name\":\"look\",\"arguments\":{\"id\":18446744073709551617}}\n</tool_call>";
        assert!(assistant.content == text && assistant.calls.is_empty(), "{assistant:?}");
        assert_eq!((result.role, result.content.as_str()), (Role::User, "<tool_response>\na wall\n</tool_response>"));
        assert!(!plain.has_tools());
    }

    #[test]
    fn a_system_message_stays_the_first_and_only_one() {
        let chat =
            vec![ConversationMessage::new(Role::System, "Be short."), ConversationMessage::new(Role::User, "Look.")];
        let plain = described(&Conversation::from_messages(chat).unwrap().with_tools(vec![look()]));
        assert_eq!((plain.messages().len(), plain.question()), (2, "Look."));
        assert!(plain.messages()[0].content.starts_with("Be short.\n\nYou may call"), "{:?}", plain.messages()[0]);
    }
}
