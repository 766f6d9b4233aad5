//! What `POST /v1/chat/completions` takes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type};
use waymark_models::grammar::Json;

use super::tool::{ToolCall, ToolChoice, ToolDefinition};
use crate::api::body::Wire;
use crate::api::error::ApiError;
use crate::api::knobs::Stop;
use crate::api::rag::RagOptions;

/// A chat completion request. `null` is the same as leaving a field out.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// The policy that answers, by its name in `/v1/models`.
    pub model: String,
    /// The conversation; its last message is the question.
    #[schema(min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// Whether to answer with server-sent events.
    pub stream: Option<bool>,
    /// Options of the stream; only with `stream: true`.
    pub stream_options: Option<StreamOptions>,
    /// How many answers to give, each by an episode of its own.
    #[schema(minimum = 1, maximum = 16)]
    pub n: Option<u32>,
    /// Bounds the tokens sampled over the whole run, reasoning and queries included; evidence does not count.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<u32>,
    /// The old name of `max_completion_tokens`; when both are given they must be equal.
    #[schema(minimum = 1, deprecated)]
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f32>,
    /// Keeps the most probable tokens that have this mass together.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Keeps this many of the most probable tokens; 0 keeps all. Not in OpenAI's interface.
    pub top_k: Option<u32>,
    /// Keeps tokens at least this probable relative to the best one. Not in OpenAI's interface.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Divides the logits of tokens seen before in the turn, or in the span that a guided policy is at. Not in OpenAI's interface.
    #[schema(minimum = 0.01, maximum = 10)]
    pub repetition_penalty: Option<f32>,
    /// Lowers tokens by how often they were sampled in the turn, or in the span that a guided policy is at.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Lowers tokens that were sampled there at all.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    /// Added to the logits of tokens, by token id.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Whether to return the log-probabilities of the answer's tokens.
    pub logprobs: Option<bool>,
    /// How many alternatives to return per token; needs `logprobs: true`.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// Makes sampling repeatable.
    pub seed: Option<i64>,
    /// False keeps no trace of it (`/v1/traces`), as `rag.store` does. Completions themselves are never stored, so true is
    /// refused.
    pub store: Option<bool>,
    /// The answer ends before any of these, in the text of a call too.
    pub stop: Option<Stop>,
    /// What the answer must be: any text, a JSON object, or JSON after a schema.
    pub response_format: Option<ResponseFormat>,
    /// Functions that the model may call: of the policy `plain` alone, for the others have tools of their own, and where
    /// the model's chat template shows them in the form of Hermes and Qwen. What it writes as a call of none of them, or with
    /// arguments that are no JSON object, is part of `content`, as is a call that breaks off.
    #[schema(max_items = 128)]
    pub tools: Option<Vec<ToolDefinition>>,
    /// Which of the tools are called; `auto` when not given.
    pub tool_choice: Option<ToolChoice>,
    /// False ends the answer with its first call.
    pub parallel_tool_calls: Option<bool>,
    /// How to search, and whether to show it. Not in OpenAI's interface.
    pub rag: Option<RagOptions>,
    /// Who asks, for the log.
    pub user: Option<String>,
    /// Who asks, for the log; the new name of `user`.
    pub safety_identifier: Option<String>,
}

impl Wire for ChatRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[
        ("audio", &[]),
        ("function_call", &["\"auto\"", "\"none\""]),
        ("functions", &["[]"]),
        ("metadata", &["{}"]),
        ("modalities", &["[\"text\"]"]),
        ("moderation", &[]),
        ("prediction", &[]),
        ("prompt_cache_key", &[]),
        ("prompt_cache_options", &[]),
        ("prompt_cache_retention", &[]),
        ("reasoning_effort", &["\"medium\""]),
        ("service_tier", &["\"auto\"", "\"default\""]),
        ("stream_options.include_obfuscation", &["false"]),
        ("verbosity", &["\"medium\""]),
        ("web_search_options", &[]),
    ];
}

/// Options of a stream.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Adds a chunk with the usage before the end.
    pub include_usage: Option<bool>,
}

/// What the answer must be. It holds for the final answer of a policy that searches, and for the whole reply of one that
/// does not; which tokens can be sampled is restricted accordingly.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    /// Which kind.
    #[serde(rename = "type")]
    pub kind: FormatKind,
    /// The schema, for the kind that has one.
    pub json_schema: Option<NamedSchema>,
}

/// Kinds of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FormatKind {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// The JSON that a schema describes.
    JsonSchema,
}

/// A JSON schema with a name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedSchema {
    /// What it is called: 1 to 64 letters, digits, `_` and `-`.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    pub name: String,
    /// What it is for. Not put before the model.
    pub description: Option<String>,
    /// The schema, draft 2020-12: an object of 64 KiB and 32 levels at most, without keywords that cannot be enforced. Any
    /// object is an answer where it is left out.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Schemas are always followed, whatever this says.
    pub strict: Option<bool>,
}

impl ResponseFormat {
    /// What the answer must be by the `response_format` of a request; nothing where any text is welcome.
    ///
    /// # Errors
    /// Names what is missing, or what belongs to another kind.
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

/// Longest name of a schema, as in OpenAI's interface.
const MAX_NAME: usize = 64;

impl NamedSchema {
    /// Whether a schema may be called `name`, which stands at `param`.
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
    /// Who speaks.
    pub role: ChatRole,
    /// What is said; only an assistant's message may lack it.
    pub content: Option<Content>,
    /// An earlier answer's reasoning, as this server sent it. It is not put before the model again.
    pub reasoning_content: Option<String>,
    /// Another server's name for `reasoning_content`.
    pub reasoning: Option<String>,
    /// An earlier answer's trace, as this server sent it. It is not put before the model again.
    #[schema(value_type = Option<Object>)]
    pub rag: Option<Value>,
    /// An earlier refusal, as this server sent it, in place of `content`: only one of them may hold text.
    pub refusal: Option<String>,
    /// A part of an earlier answer that must be empty here.
    #[schema(schema_with = empty)]
    pub annotations: Option<Value>,
    /// A part of an earlier answer that must be null here.
    #[schema(schema_with = null)]
    pub audio: Option<Value>,
    /// The calls that an earlier answer made.
    pub tool_calls: Option<Vec<ToolCall>>,
    /// A part of an earlier answer that must be null here.
    #[schema(schema_with = null)]
    pub function_call: Option<Value>,
    /// Speakers' names are not supported: must be null.
    #[schema(schema_with = null)]
    pub name: Option<String>,
    /// The call whose result this is, its only one: a call of an earlier message. Only a tool's message has it.
    pub tool_call_id: Option<String>,
}

/// Nothing but null.
fn null() -> Schema {
    ObjectBuilder::new().schema_type(Type::Null).into()
}

/// Null, or a list of nothing.
fn empty() -> Schema {
    let types = SchemaType::from_iter([Type::Array, Type::Null]);
    ArrayBuilder::new().schema_type(types).max_items(Some(0)).into()
}

/// Who speaks. `function` is known and refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChatRole {
    /// The operator, under its present name.
    Developer,
    /// The operator.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
    /// A function's result: refused.
    Function,
}

/// The text of a message, whole or in parts.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of parts, each with a `type`")]
pub enum Content {
    /// The text.
    Text(String),
    /// Parts, of which only `text` ones are supported.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct ContentPart {
    /// Its kind; only `text` is supported.
    #[serde(rename = "type")]
    #[schema(pattern = "^text$")]
    pub kind: String,
    /// Its text.
    pub text: Option<String>,
    /// Anything else is refused by name.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}
