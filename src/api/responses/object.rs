//! The response object, as returned, streamed, and stored.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use waymark_agent::{EpisodeEnd, Usage};

use super::format::TextFormat;
use super::function_tool::ToolChoiceShape;
use super::item::{FunctionCallItem, ItemStatus, MessagePart, OutputItem};
use super::request::{ConversationReference, Truncation};
use super::show::Show;
use crate::api::error::ApiError;
use crate::api::rag::RagTrace;

/// Response to a request.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponseObject {
    /// ID of the response.
    pub id: String,
    /// Always `response`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created_at: u64,
    /// Status of the response.
    pub status: ResponseStatus,
    /// Completion time, in seconds since 1970.
    #[schema(required)]
    pub completed_at: Option<u64>,
    /// Error, if the response failed.
    #[schema(required)]
    pub error: Option<ResponseFault>,
    /// Reason the response is incomplete, if it is.
    #[schema(required)]
    pub incomplete_details: Option<IncompleteDetails>,
    /// If `true`, the response is generated in the background.
    pub background: bool,
    /// Conversation that the response continues, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationReference>,
    /// Same as in the request.
    #[schema(required)]
    pub instructions: Option<String>,
    /// Same as in the request.
    #[schema(required)]
    pub max_output_tokens: Option<u32>,
    /// Same as in the request.
    #[schema(required)]
    pub max_tool_calls: Option<usize>,
    /// Same as in the request.
    pub metadata: BTreeMap<String, String>,
    /// Name of the policy that answers.
    pub model: String,
    /// Reasoning, searches, calls of functions and the answer, in the order they began.
    pub output: Vec<OutputItem>,
    /// Same as in the request. Searches run one after the other in any case.
    pub parallel_tool_calls: bool,
    /// Same as in the request.
    #[schema(required)]
    pub previous_response_id: Option<String>,
    /// Same as in the request.
    #[schema(required)]
    pub prompt_cache_key: Option<String>,
    /// Reasoning options.
    pub reasoning: ReasoningOptions,
    /// Same as in the request.
    #[schema(required)]
    pub safety_identifier: Option<String>,
    /// Always `default`.
    pub service_tier: &'static str,
    /// If `true`, the response is stored and can be fetched by its ID.
    pub store: bool,
    /// Sampling temperature in effect.
    pub temperature: f32,
    /// Same as in the request.
    pub text: TextOptions,
    /// Same as in the request: `auto`, `none`, `required`, a function by its name, or `allowed_tools`.
    #[schema(value_type = ToolChoiceShape)]
    pub tool_choice: Value,
    /// Same as in the request.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
    /// Same as in the request.
    pub top_logprobs: u32,
    /// Nucleus sampling threshold in effect.
    pub top_p: f32,
    /// Same as in the request.
    pub truncation: Truncation,
    /// Tokens and searches used. Null until the response has ended.
    #[schema(required)]
    pub usage: Option<ResponseUsage>,
    /// Same as in the request.
    #[schema(required)]
    pub user: Option<String>,
    /// Steps of the episode, if `rag.trace` is set. Not in OpenAI's interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rag: Option<RagTrace>,
}

impl ResponseObject {
    /// Returns a copy with only the parts selected by `show`.
    pub(super) fn shown(&self, show: Show) -> ResponseObject {
        let mut shown = self.clone();
        shown.output.iter_mut().for_each(|item| item.strip(show));
        shown
    }

    /// Marks items in progress as incomplete.
    pub(super) fn break_off(&mut self) {
        for item in &mut self.output {
            let status = item.status();
            if *status == ItemStatus::InProgress {
                *status = ItemStatus::Incomplete;
            }
        }
    }

    /// Returns the text of the answer or the refusal so far.
    pub(super) fn text(&self) -> String {
        let messages = self.output.iter().filter_map(|item| match item {
            OutputItem::Message(message) => Some(&message.content),
            _ => None,
        });
        messages.flatten().map(MessagePart::text).collect()
    }

    /// Returns the complete calls of functions so far.
    pub(super) fn calls(&self) -> impl Iterator<Item = &FunctionCallItem> {
        self.output.iter().filter_map(|item| match item {
            OutputItem::FunctionCall(call) if call.status == ItemStatus::Completed => Some(call),
            _ => None,
        })
    }
}

/// Status of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    /// Waiting to be admitted by the engine.
    Queued,
    /// Being generated.
    InProgress,
    /// Complete.
    Completed,
    /// Ended at a limit.
    Incomplete,
    /// Failed.
    Failed,
    /// Canceled.
    Cancelled,
}

impl ResponseStatus {
    /// Returns `true` if the response has ended.
    pub(super) fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::InProgress)
    }
}

impl fmt::Display for ResponseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued => "queued",
            Self::InProgress => "in progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

/// Error of a failed response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResponseFault {
    /// `server_error`, or `invalid_prompt` if the request was at fault.
    pub code: &'static str,
    /// One sentence for a person.
    pub message: String,
}

impl From<&ApiError> for ResponseFault {
    fn from(error: &ApiError) -> Self {
        // OpenAI's codes of failed responses are a closed list, to which the server's own codes do not belong.
        let code = if error.code.status().is_server_error() { "server_error" } else { "invalid_prompt" };
        Self { code, message: error.message.clone() }
    }
}

/// Details of an incomplete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct IncompleteDetails {
    /// Limit that was reached.
    pub reason: ResponseBound,
}

/// Limit of a response. The last one is not in OpenAI's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Bound)]
#[serde(rename_all = "snake_case")]
pub enum ResponseBound {
    /// Sampled tokens, or the context.
    MaxOutputTokens,
    /// Rounds with the environment, searches, or tokens of observations, reached without an answer.
    MaxToolCalls,
    /// Time.
    MaxTime,
}

/// Returns the limit that ended the episode. `None` if no limit did.
pub(super) fn bound(reason: EpisodeEnd) -> Option<ResponseBound> {
    match reason {
        EpisodeEnd::Stop | EpisodeEnd::Refused | EpisodeEnd::Called => None,
        EpisodeEnd::Length => Some(ResponseBound::MaxOutputTokens),
        EpisodeEnd::Turns => Some(ResponseBound::MaxToolCalls),
        EpisodeEnd::Time => Some(ResponseBound::MaxTime),
    }
}

/// Tokens and searches used by a response.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct ResponseUsage {
    /// Number of tokens in the prompt.
    pub input_tokens: usize,
    /// Details of `input_tokens`.
    pub input_tokens_details: InputTokensDetails,
    /// Number of tokens generated: sampled ones, and those that the protocol forced.
    pub output_tokens: usize,
    /// Details of `output_tokens`.
    pub output_tokens_details: OutputTokensDetails,
    /// Sum of `input_tokens` and `output_tokens`.
    pub total_tokens: usize,
    /// Number of tokens of evidence and other observations, not included in either count. Not in OpenAI's interface.
    pub environment_tokens: usize,
    /// Number of executed searches. Not in OpenAI's interface.
    pub searches: usize,
    /// Total duration of the searches, in milliseconds. Not in OpenAI's interface.
    pub search_ms: f64,
}

/// Details of the prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct InputTokensDetails {
    /// Number of tokens found in the prefix cache.
    pub cached_tokens: usize,
    /// Always 0: writing to the cache costs nothing here.
    pub cache_write_tokens: usize,
}

/// Details of the generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct OutputTokensDetails {
    /// Number of tokens of reasoning and queries, without tags.
    pub reasoning_tokens: usize,
}

impl From<&Usage> for ResponseUsage {
    fn from(usage: &Usage) -> Self {
        let cached_tokens = usage.cached_tokens.min(usage.prompt_tokens);
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails { cached_tokens, cache_write_tokens: 0 },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: usage.reasoning_tokens },
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            environment_tokens: usage.environment_tokens,
            searches: usage.searches,
            search_ms: usage.search_ms,
        }
    }
}

/// Reasoning options. Policies reason as they were trained, so there is nothing to set.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct ReasoningOptions {
    /// Same as in the request.
    #[schema(required)]
    pub effort: Option<String>,
    /// Always null.
    #[schema(required)]
    pub summary: Option<&'static str>,
}

/// Text options of a response.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct TextOptions {
    /// Same as in the request.
    pub format: TextFormat,
    /// Same as in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<String>,
}
