//! Request types of `POST /v1/responses`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use waymark_agent::{ConversationMessage, Role};

use super::format::TextRequest;
use super::function_tool::ToolChoiceShape;
use super::input::InputShape;
use super::parsed_item::ParsedItem;
use super::tool::ToolShape;
use crate::api::body::WireRequest;
use crate::api::error::ApiError;
use crate::api::hint::Hint;
use crate::api::rag::RagOptions;
use crate::api::text_or::{InPlaceOfText, TextOr};

/// Request for a response. `null` is the same as leaving a field out.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesRequest {
    /// Policy that answers, by its name in `/v1/models`.
    pub model: String,
    /// Question, or conversation whose last message is the question.
    #[schema(value_type = InputShape)]
    pub input: ResponsesInput,
    /// Instructions that precede the conversation. Those of a previous response do not carry over.
    pub instructions: Option<String>,
    /// ID of a stored response whose conversation is continued.
    pub previous_response_id: Option<String>,
    /// Conversation that is continued; the items of this response are added to it. Requires `store`, and excludes
    /// `previous_response_id`.
    pub conversation: Option<ConversationParam>,
    /// If `true` (the default), the response is stored and can be fetched and continued by its ID. A server that keeps
    /// no responses refuses `true`, unless there is a `conversation` to keep.
    pub store: Option<bool>,
    /// If `true`, the request returns at once and the response is generated in the background. Requires `store`.
    pub background: Option<bool>,
    /// If `true`, the response is a stream of server-sent events.
    pub stream: Option<bool>,
    /// Optional parts of the response to return: `file_search_call.results`, `message.output_text.logprobs`,
    /// `reasoning.encrypted_content`.
    pub include: Option<Vec<String>>,
    /// Functions that the policy may call, and at most one tool of type `file_search`, with search options. A policy
    /// that searches calls at most one function in a response. Policies search whether or not `file_search` is listed;
    /// `tool_choice` prevents searching.
    #[schema(value_type = Option<Vec<ToolShape>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto` (the default); `none`: the policy answers without searching or calling functions; `required`: exactly one
    /// call of a function takes the place of the answer; a function that is called so; or `allowed_tools`: some of the
    /// tools, in the mode `auto` or `required`.
    #[schema(value_type = Option<ToolChoiceShape>)]
    pub tool_choice: Option<Value>,
    /// If `false`, the answer ends after its first call of a function. Searches run one after the other in any case.
    pub parallel_tool_calls: Option<bool>,
    /// Maximum number of rounds with searches.
    pub max_tool_calls: Option<usize>,
    /// Maximum number of completion tokens of the whole episode. Reasoning, queries and the tags that the loop forces
    /// count, evidence does not.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<u32>,
    /// `disabled` (the default): a conversation that is too long for the context is refused, and so is a previous
    /// response with more than 1000 messages or 16 MiB of text. `auto`: the oldest turns are dropped; instructions and
    /// the question are kept.
    pub truncation: Option<Truncation>,
    /// Sampling temperature.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f32>,
    /// Nucleus sampling: keeps the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Number of most likely tokens to return at each position. Requires `message.output_text.logprobs` in `include`.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// Format of the answer: any text, or JSON.
    pub text: Option<TextRequest>,
    /// Seed of the random number generator. The same seed gives the same samples. Not in OpenAI's interface.
    pub seed: Option<i64>,
    /// Up to 16 pairs that are returned with the response: names of at most 64 characters, values of at most 512.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Search options. Citations are always returned as annotations here, so `citations` cannot be `true`. Not in
    /// OpenAI's interface.
    pub rag: Option<RagOptions>,
    /// Hint without effect, returned with the response: cached prefixes are recognized by their tokens.
    pub prompt_cache_key: Option<String>,
    /// Hint without effect: prefixes stay cached as long as there is memory for them.
    pub prompt_cache_retention: Option<String>,
    /// Hints for reasoning.
    pub reasoning: Option<ReasoningRequest>,
    /// Hint without effect: there is one class of service, `default`.
    pub service_tier: Option<String>,
    /// Name of the end user, for the log.
    pub user: Option<String>,
    /// Name of the end user, for the log. Replaces `user`.
    pub safety_identifier: Option<String>,
}

impl ResponsesRequest {
    /// Creates a request without options.
    pub(super) fn new(model: String, input: ResponsesInput) -> ResponsesRequest {
        ResponsesRequest {
            model,
            input,
            instructions: None,
            previous_response_id: None,
            conversation: None,
            store: None,
            background: None,
            stream: None,
            include: None,
            tools: None,
            tool_choice: None,
            parallel_tool_calls: None,
            max_tool_calls: None,
            max_output_tokens: None,
            truncation: None,
            temperature: None,
            top_p: None,
            top_logprobs: None,
            text: None,
            seed: None,
            metadata: None,
            rag: None,
            prompt_cache_key: None,
            prompt_cache_retention: None,
            reasoning: None,
            service_tier: None,
            user: None,
            safety_identifier: None,
        }
    }
}

/// Treatment of conversations that are too long for the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// The oldest turns are dropped.
    Auto,
    /// They are refused.
    #[default]
    Disabled,
}

/// Conversation of a request.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<ConversationReference>")]
pub enum ConversationParam {
    /// ID of the conversation.
    Id(String),
    /// Object with the ID.
    Object(ConversationReference),
}

/// Reference to a conversation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConversationReference {
    /// ID of the conversation.
    pub id: String,
}

impl InPlaceOfText for ConversationReference {
    const EXPECTED: &'static str = "the ID of a conversation, or an object with its `id`";
}

impl From<TextOr<ConversationReference>> for ConversationParam {
    fn from(conversation: TextOr<ConversationReference>) -> ConversationParam {
        match conversation {
            TextOr::Text(id) => ConversationParam::Id(id),
            TextOr::Other(object) => ConversationParam::Object(object),
        }
    }
}

impl ConversationParam {
    /// Returns the ID of the conversation.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Id(id) | Self::Object(ConversationReference { id }) => id,
        }
    }
}

/// Hints for reasoning.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReasoningRequest {
    /// Hint without effect, returned with the response: a policy reasons as it was trained to.
    pub effort: Option<String>,
}

/// Question or list of items. Items stay raw JSON at first, so errors can name the item and the field.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum ResponsesInput {
    /// Question.
    Text(String),
    /// Messages, and items of earlier responses.
    Items(Vec<Value>),
}

impl ResponsesInput {
    /// Parses the items, each with its path in the request.
    ///
    /// # Errors
    /// Names the item, and the field in it, that cannot be used.
    pub(super) fn parsed(self) -> Result<Vec<(String, ParsedItem)>, ApiError> {
        let items = match self {
            ResponsesInput::Text(text) => {
                let question = ParsedItem::Message(ConversationMessage::new(Role::User, text));
                return Ok(vec![("input".to_owned(), question)]);
            }
            ResponsesInput::Items(items) => items,
        };
        let parsed = |(at, item): (usize, Value)| {
            let at = format!("input[{at}]");
            let item = ParsedItem::read(item, &at)?;
            Ok((at, item))
        };
        items.into_iter().enumerate().map(parsed).collect()
    }
}

impl WireRequest for ResponsesRequest {
    // A nested field stands before its parent: once the nested fields are removed, the parent must be empty.
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[
        ("access_programs", &[]),
        ("context_management", &["[]"]),
        ("image", &[]),
        ("max_tokens", &[]),
        ("moderation", &[]),
        ("prompt", &[]),
        ("prompt_cache_options", &[]),
        ("rag.citations", &["false"]),
        ("reasoning.generate_summary", &[]),
        ("reasoning.summary", &[]),
        ("stream_options.include_obfuscation", &["false"]),
        ("stream_options", &["{}"]),
    ];
    const HINTS: &'static [Hint] =
        &[Hint::CACHE_KEY, Hint::CACHE_RETENTION, Hint::NESTED_EFFORT, Hint::NESTED_VERBOSITY, Hint::TIER];
}
