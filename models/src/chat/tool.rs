//! Callable functions and function calls, in the form that templates expect.

use minijinja::Value;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{Arguments, Message};

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Name of the function.
    pub name: String,
    /// Description of its purpose.
    pub description: Option<String>,
    /// JSON schema of the arguments.
    pub parameters: Option<Json>,
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Name of the called function.
    pub name: String,
    /// Arguments by name.
    pub arguments: Arguments,
}

impl ToolCall {
    /// Size of the texts in bytes.
    pub fn bytes(&self) -> usize {
        self.name.len() + self.arguments.as_str().len()
    }
}

/// Transformation applied to every untrusted text before a template sees it.
pub(super) type Mark<'a> = &'a dyn Fn(&str) -> String;

/// Options of a prompt other than its messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct PromptOptions<'a> {
    /// Tools that the template shows.
    pub tools: &'a [Tool],
    /// Value of the template's switch for thinking. `None` leaves it undefined.
    pub thinking: Option<bool>,
}

/// All untrusted input of a template.
#[derive(Debug, Clone, Copy)]
pub(super) struct TemplateInput<'a> {
    pub(super) messages: &'a [Message],
    pub(super) options: PromptOptions<'a>,
}

impl TemplateInput<'_> {
    /// Messages and tools as template values. Applies `mark` to every text except roles, including names and schema
    /// keys, because templates write them verbatim.
    pub(super) fn values(&self, mark: Mark<'_>) -> (Value, Value) {
        let messages: Value = self.messages.iter().map(|message| message_value(message, mark)).collect();
        if self.options.tools.is_empty() {
            // As in `transformers`: templates check whether `tools` is `none`.
            return (messages, Value::from(()));
        }
        let tools: Value = self.options.tools.iter().map(|tool| tool_value(tool, mark)).collect();
        (messages, tools)
    }
}

fn message_value(message: &Message, mark: Mark<'_>) -> Value {
    let content = Value::from(mark(&message.content));
    let mut fields = vec![("role", Value::from(message.role.as_str())), ("content", content)];
    // Left undefined when empty, because templates check whether it is defined.
    if !message.tool_calls.is_empty() {
        let calls: Value = message.tool_calls.iter().map(|call| call_value(call, mark)).collect();
        fields.push(("tool_calls", calls));
    }
    Value::from_pairs(fields)
}

fn tool_value(tool: &Tool, mark: Mark<'_>) -> Value {
    let mut fields = vec![("name", Value::from(mark(&tool.name)))];
    fields.extend(tool.description.iter().map(|text| ("description", Value::from(mark(text)))));
    fields.extend(tool.parameters.iter().map(|schema| ("parameters", json(schema, mark))));
    function(fields)
}

fn call_value(call: &ToolCall, mark: Mark<'_>) -> Value {
    function(vec![("name", Value::from(mark(&call.name))), ("arguments", call.arguments.value(mark))])
}

fn function(fields: Vec<(&'static str, Value)>) -> Value {
    Value::from_pairs([("type", Value::from("function")), ("function", Value::from_pairs(fields))])
}

fn json(value: &Json, mark: Mark<'_>) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Value::from(mark(text)),
        Json::Array(items) => items.iter().map(|item| json(item, mark)).collect(),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(name, field)| (mark(name), json(field, mark)))),
    }
}
