//! What `POST /v1/responses` takes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::format::TextRequest;
use super::input::InputShape;
use super::tool::FileSearchTool;
use crate::api::body::Wire;
use crate::api::rag::RagOptions;

/// A request for a response. `null` is the same as leaving a field out.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesRequest {
    /// The policy that answers, by its name in `/v1/models`.
    pub model: String,
    /// The question, or a conversation whose last message is the question.
    #[schema(value_type = InputShape)]
    pub input: ResponsesInput,
    /// Instructions that precede the conversation. Those of a previous response do not carry over.
    pub instructions: Option<String>,
    /// A stored response whose conversation goes on.
    pub previous_response_id: Option<String>,
    /// Whether the response is kept, to be fetched and continued by its id; true when not given.
    pub store: Option<bool>,
    /// Whether to answer at once, with a response that is fetched later; needs `store`.
    pub background: Option<bool>,
    /// Whether to answer with server-sent events.
    pub stream: Option<bool>,
    /// What is shown beyond what always is: `file_search_call.results`, `message.output_text.logprobs`.
    pub include: Option<Vec<String>>,
    /// At most one tool of type `file_search`, which says how the policy searches. Policies search whether it is listed or
    /// not; `tool_choice` keeps them from it.
    #[schema(value_type = Option<Vec<FileSearchTool>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto` (when not given), or `none`: the policy answers without searching.
    #[schema(value_type = Option<String>)]
    pub tool_choice: Option<Value>,
    /// Taken as it is: searches follow one another.
    pub parallel_tool_calls: Option<bool>,
    /// Bounds the searches of the run: no more rounds are made than this.
    pub max_tool_calls: Option<usize>,
    /// Bounds the tokens sampled over the whole run, reasoning and queries included; evidence does not count.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<u32>,
    /// Sampling temperature.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f32>,
    /// Keeps the most probable tokens that have this mass together.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// How many alternatives to return per token; needs `message.output_text.logprobs` in `include`.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// How the answer is written: as any text, or as JSON.
    pub text: Option<TextRequest>,
    /// Makes sampling repeatable. Not in OpenAI's interface.
    pub seed: Option<i64>,
    /// Up to 16 pairs that are given back: names of at most 64 characters, values of at most 512.
    pub metadata: Option<BTreeMap<String, String>>,
    /// How to search, and whether to show it. Citations are annotations here, so `citations` can be nothing but false. Not in
    /// OpenAI's interface.
    pub rag: Option<RagOptions>,
    /// Who asks, for the log.
    pub user: Option<String>,
    /// Who asks, for the log; the new name of `user`.
    pub safety_identifier: Option<String>,
}

/// A question, or a list of items, each of which is read by itself so that what is wrong in it can be named.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum ResponsesInput {
    /// The question.
    Text(String),
    /// Messages, and items of earlier responses.
    Items(Vec<Value>),
}

impl Wire for ResponsesRequest {
    // A part stands before its whole: what is left of the whole must be empty.
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[
        ("access_programs", &[]),
        ("context_management", &["[]"]),
        ("conversation", &[]),
        ("image", &[]),
        ("max_tokens", &[]),
        ("moderation", &[]),
        ("prompt", &[]),
        ("prompt_cache_key", &[]),
        ("prompt_cache_options", &[]),
        ("prompt_cache_retention", &[]),
        ("rag.citations", &["false"]),
        ("reasoning.effort", &["\"medium\""]),
        ("reasoning.generate_summary", &[]),
        ("reasoning.summary", &[]),
        ("reasoning", &["{}"]),
        ("service_tier", &["\"auto\"", "\"default\""]),
        ("stream_options.include_obfuscation", &["false"]),
        ("stream_options", &["{}"]),
        ("text.verbosity", &["\"medium\""]),
        ("truncation", &["\"disabled\""]),
    ];
}
