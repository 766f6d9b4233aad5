//! Request types of `POST /v1/chat/completions`.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type};
use waymark_models::grammar::Json;

use super::tool::{ChatToolCall, ToolChoice, ToolDefinition};
use crate::api::body::WireRequest;
use crate::api::error::ApiError;
use crate::api::hint::Hint;
use crate::api::rag::RagOptions;
use crate::api::sampling_params::StopStrings;
use crate::api::text_or::TextOr;
use crate::api::vllm_options::StructuredOutputs;

/// Chat completion request. `null` is the same as leaving a field out.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// Policy that answers, by its name in `/v1/models`.
    pub model: String,
    /// Conversation. Its last message is the question.
    #[schema(min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// If `true`, the response is a stream of server-sent events.
    pub stream: Option<bool>,
    /// Options of the stream. Requires `stream: true`.
    pub stream_options: Option<StreamOptions>,
    /// Number of answers to give. Each is an episode of its own.
    #[schema(minimum = 1, maximum = 16)]
    pub n: Option<u32>,
    /// Maximum number of completion tokens of the whole episode. Reasoning, queries and the tags that the loop forces
    /// count, evidence does not.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<u32>,
    /// Old name of `max_completion_tokens`. If both are given they must be equal.
    #[schema(minimum = 1, deprecated)]
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f32>,
    /// Nucleus sampling: keeps the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Number of most probable tokens to keep; 0 and -1 keep all. Not in OpenAI's interface.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Minimum probability of a token relative to the most probable one. Not in OpenAI's interface.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens already in the turn (for a guided policy: in the current span). Not in OpenAI's
    /// interface.
    #[schema(minimum = 0.01, maximum = 10)]
    pub repetition_penalty: Option<f32>,
    /// Penalty on tokens by how often they were sampled in the turn (for a guided policy: in the current span).
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Penalty on tokens that were sampled at least once in the turn (for a guided policy: in the current span).
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    /// Values added to the logits of tokens, by token ID.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// If `true`, the log-probabilities of the answer's tokens are returned.
    pub logprobs: Option<bool>,
    /// Number of most likely tokens to return at each position. Requires `logprobs: true`.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// Seed of the random number generator. The same seed gives the same samples.
    pub seed: Option<i64>,
    /// If `false`, no trace of the episode is kept (`/v1/traces`), like `rag.store`. `true` is a hint without effect:
    /// completions themselves are never stored.
    pub store: Option<bool>,
    /// Strings that end the answer. The stop string itself is not returned. Applies to the text of tool calls too.
    pub stop: Option<StopStrings>,
    /// Format of the answer: any text, a JSON object, or JSON that follows a schema.
    pub response_format: Option<ResponseFormat>,
    /// Form of the answer, in place of `response_format`. Not in OpenAI's interface.
    pub structured_outputs: Option<StructuredOutputs>,
    /// JSON schema of the answer: old name of `structured_outputs.json`. Not in OpenAI's interface.
    #[schema(value_type = Option<Object>)]
    pub guided_json: Option<Value>,
    /// Regular expression of the answer: old name of `structured_outputs.regex`. Not in OpenAI's interface.
    pub guided_regex: Option<String>,
    /// Texts, one of which is the answer: old name of `structured_outputs.choice`. Not in OpenAI's interface.
    pub guided_choice: Option<Vec<String>>,
    /// Lark grammar of the answer: old name of `structured_outputs.grammar`. Not in OpenAI's interface.
    pub guided_grammar: Option<String>,
    /// Up to 64 token IDs that end the answer, in addition to the model's own. The text of such a token is not
    /// returned. Only for policies that do not search. Not in OpenAI's interface.
    pub stop_token_ids: Option<Vec<u32>>,
    /// If `true`, the model's own end-of-sequence tokens do not end the answer. Only for policies that do not search.
    /// Not in OpenAI's interface.
    pub ignore_eos: Option<bool>,
    /// Number of tokens before which no end-of-sequence or stop token is sampled, at most the request's and the policy's
    /// maximum. Stop strings end the answer all the same. Only for policies that do not search. Not in OpenAI's interface.
    pub min_tokens: Option<u32>,
    /// Variables of the chat template: `enable_thinking`, if the template has such a switch and the policy does not
    /// search. Not in OpenAI's interface.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Functions that the model may call. A policy that searches calls at most one in an answer. Shown by the model's
    /// chat template, or in the system message if the template knows no tools in the form of Hermes and Qwen. A call of
    /// an unknown function, a call whose arguments are not a JSON object, and a truncated call are returned as text.
    #[schema(max_items = 128)]
    pub tools: Option<Vec<ToolDefinition>>,
    /// Tool choice; defaults to `auto`.
    pub tool_choice: Option<ToolChoice>,
    /// If `false`, the answer ends after its first call.
    pub parallel_tool_calls: Option<bool>,
    /// Search options. Not in OpenAI's interface.
    pub rag: Option<RagOptions>,
    /// Hint without effect: pairs that OpenAI would store with the completion.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Hint without effect: cached prefixes are recognized by their tokens.
    pub prompt_cache_key: Option<String>,
    /// Hint without effect: prefixes stay cached as long as there is memory for them.
    pub prompt_cache_retention: Option<String>,
    /// Hint without effect: a policy reasons as it was trained to.
    pub reasoning_effort: Option<String>,
    /// Hint without effect: there is one class of service, `default`.
    pub service_tier: Option<String>,
    /// Hint without effect: a policy answers as it was trained to.
    pub verbosity: Option<String>,
    /// Name of the end user, for the log.
    pub user: Option<String>,
    /// Name of the end user, for the log. Replaces `user`.
    pub safety_identifier: Option<String>,
}

impl WireRequest for ChatRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[
        ("audio", &[]),
        ("add_generation_prompt", &["true"]),
        ("continue_final_message", &["false"]),
        ("include_reasoning", &["true"]),
        ("skip_special_tokens", &["true"]),
        ("spaces_between_special_tokens", &["true"]),
        ("include_stop_str_in_output", &["false"]),
        ("function_call", &["\"auto\"", "\"none\""]),
        ("functions", &["[]"]),
        ("modalities", &["[\"text\"]"]),
        ("moderation", &[]),
        ("prediction", &[]),
        ("prompt_cache_options", &[]),
        ("stream_options.include_obfuscation", &["false"]),
        ("web_search_options", &[]),
    ];
    const HINTS: &'static [Hint] =
        &[Hint::METADATA, Hint::CACHE_KEY, Hint::CACHE_RETENTION, Hint::EFFORT, Hint::TIER, Hint::VERBOSITY];
}

/// Options of a stream.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// If `true`, a chunk with the usage is added before the end.
    pub include_usage: Option<bool>,
}

/// Format of the answer. It applies to the final answer of a policy that searches, and to the whole reply of one that
/// does not. Sampling is restricted to tokens that keep to the format.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    /// Kind of format.
    #[serde(rename = "type")]
    pub kind: FormatKind,
    /// Schema, for the kind `json_schema`.
    pub json_schema: Option<NamedSchema>,
}

/// Kind of format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FormatKind {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that follows a schema.
    JsonSchema,
}

/// JSON schema with a name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedSchema {
    /// Name of the schema: 1 to 64 letters, digits, `_` and `-`.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    pub name: String,
    /// Description of the schema. The model does not see it.
    pub description: Option<String>,
    /// JSON schema, draft 2020-12: an object of at most 64 KiB and 32 levels, without keywords that cannot be enforced.
    /// If absent, any object is accepted.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Ignored: schemas are always enforced.
    pub strict: Option<bool>,
}

impl ResponseFormat {
    /// Converts the `response_format` of a request to a constraint on the answer. `None` allows any text.
    ///
    /// # Errors
    /// Names the field that is missing, or that belongs to another kind.
    pub(crate) fn shape(format: Option<ResponseFormat>) -> Result<Option<Json>, ApiError> {
        const SCHEMA: &str = "response_format.json_schema";
        let Some(ResponseFormat { kind, json_schema }) = format else { return Ok(None) };
        match (kind, json_schema) {
            (FormatKind::Text, None) => Ok(None),
            (FormatKind::JsonObject, None) => Ok(Some(Json::Object)),
            (FormatKind::JsonSchema, Some(named)) => {
                NamedSchema::check_name("response_format.json_schema.name", &named.name)?;
                Ok(Some(named.schema.map_or(Json::Object, Json::Schema)))
            }
            (FormatKind::JsonSchema, None) => Err(ApiError::missing(SCHEMA)),
            (FormatKind::Text | FormatKind::JsonObject, Some(_)) => {
                Err(ApiError::invalid(SCHEMA, format!("`{SCHEMA}` needs the type `json_schema`")))
            }
        }
    }
}

/// Maximum length of a schema's name, as in OpenAI's interface.
const MAX_NAME: usize = 64;

impl NamedSchema {
    /// Checks that `name` is a valid name of a schema. `param` is its path in the request.
    pub(crate) fn check_name(param: &str, name: &str) -> Result<(), ApiError> {
        let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if !letters || name.is_empty() || name.len() > MAX_NAME {
            let message = format!("the name of a schema has 1 to {MAX_NAME} letters, digits, `_` and `-`");
            return Err(ApiError::invalid(param, message));
        }
        Ok(())
    }
}

/// One message of the conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// Role of the speaker.
    pub role: ChatRole,
    /// Text of the message. Optional only in messages of the assistant.
    pub content: Option<MessageContent>,
    /// Reasoning of an earlier answer, as this server sent it. The model does not see it again.
    pub reasoning_content: Option<String>,
    /// Another server's name for `reasoning_content`.
    pub reasoning: Option<String>,
    /// Trace of an earlier answer, as this server sent it. The model does not see it again.
    #[schema(value_type = Option<Object>)]
    pub rag: Option<Value>,
    /// Earlier refusal, as this server sent it, in place of `content`. Only one of the two may hold text.
    pub refusal: Option<String>,
    /// Part of an earlier answer that must be empty here.
    #[schema(schema_with = empty)]
    pub annotations: Option<Value>,
    /// Part of an earlier answer that must be null here.
    #[schema(schema_with = null)]
    pub audio: Option<Value>,
    /// Tool calls of an earlier answer.
    pub tool_calls: Option<Vec<ChatToolCall>>,
    /// Part of an earlier answer that must be null here.
    #[schema(schema_with = null)]
    pub function_call: Option<Value>,
    /// Hint without effect: name of the speaker, or of the function whose result this is. No chat template shows it.
    #[schema(max_length = 512)]
    pub name: Option<String>,
    /// Answer as OpenAI's libraries parse it next to the text of messages that are sent back. Ignored.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub parsed: IgnoredAny,
    /// ID of the call whose result this is, from an earlier message. Only for messages with the role `tool`.
    pub tool_call_id: Option<String>,
}

/// Schema that allows only null.
fn null() -> Schema {
    ObjectBuilder::new().schema_type(Type::Null).into()
}

/// Schema that allows null or an empty list.
fn empty() -> Schema {
    let types = SchemaType::from_iter([Type::Array, Type::Null]);
    ArrayBuilder::new().schema_type(types).max_items(Some(0)).into()
}

/// Role of the speaker. `function` is recognized and refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChatRole {
    /// Operator, under its current name.
    Developer,
    /// Operator.
    System,
    /// End user.
    User,
    /// Model.
    Assistant,
    /// Result of a tool.
    Tool,
    /// Result of a function; refused.
    Function,
}

/// The text of a message, whole or in parts.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = Content)]
#[serde(untagged, from = "TextOr<Vec<ContentPart>>")]
pub enum MessageContent {
    /// The text.
    Text(String),
    /// Parts, of which only those of type `text` are supported.
    Parts(Vec<ContentPart>),
}

impl From<TextOr<Vec<ContentPart>>> for MessageContent {
    fn from(content: TextOr<Vec<ContentPart>>) -> MessageContent {
        match content {
            TextOr::Text(text) => MessageContent::Text(text),
            TextOr::Other(parts) => MessageContent::Parts(parts),
        }
    }
}

/// A part of a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct ContentPart {
    /// Type of the part; only `text` is supported.
    #[serde(rename = "type")]
    #[schema(pattern = "^text$")]
    pub kind: String,
    /// Text of the part.
    pub text: Option<String>,
    /// Unknown fields, refused by name.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}
