//! The response object: what is answered, streamed, and kept.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::format::TextFormat;
use super::item::{ItemStatus, MessagePart, OutputItem};
use super::show::Show;
use crate::agent::{Reason, Usage};
use crate::api::error::ApiError;
use crate::api::rag::RagTrace;

/// A response.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponseObject {
    /// Names it.
    pub id: String,
    /// Always `response`.
    pub object: &'static str,
    /// When it was begun, in seconds since 1970.
    pub created_at: u64,
    /// How far it is.
    pub status: ResponseStatus,
    /// When it was completed, in seconds since 1970.
    #[schema(required)]
    pub completed_at: Option<u64>,
    /// What went wrong, if it failed.
    #[schema(required)]
    pub error: Option<ResponseFault>,
    /// Why it is incomplete, if it is.
    #[schema(required)]
    pub incomplete_details: Option<IncompleteDetails>,
    /// Whether it is made without a client waiting.
    pub background: bool,
    /// As in the request.
    #[schema(required)]
    pub instructions: Option<String>,
    /// As in the request.
    #[schema(required)]
    pub max_output_tokens: Option<u32>,
    /// As in the request.
    #[schema(required)]
    pub max_tool_calls: Option<usize>,
    /// As in the request.
    pub metadata: BTreeMap<String, String>,
    /// The policy that answers.
    pub model: String,
    /// Reasoning, searches and the answer, in the order in which they were begun.
    pub output: Vec<OutputItem>,
    /// As in the request. Searches follow one another either way.
    pub parallel_tool_calls: bool,
    /// As in the request.
    #[schema(required)]
    pub previous_response_id: Option<String>,
    /// Always without effort and summary.
    pub reasoning: ReasoningOptions,
    /// As in the request.
    #[schema(required)]
    pub safety_identifier: Option<String>,
    /// Always `default`.
    pub service_tier: &'static str,
    /// Whether it can be fetched by its id.
    pub store: bool,
    /// What was sampled with.
    pub temperature: f32,
    /// As in the request.
    pub text: TextOptions,
    /// As in the request: `auto` or `none`.
    pub tool_choice: String,
    /// As in the request.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
    /// As in the request.
    pub top_logprobs: u32,
    /// What was sampled with.
    pub top_p: f32,
    /// Always `disabled`.
    pub truncation: &'static str,
    /// What it cost; null until it is over.
    #[schema(required)]
    pub usage: Option<ResponseUsage>,
    /// As in the request.
    #[schema(required)]
    pub user: Option<String>,
    /// What was done on the way, when `rag.trace` is set. Not in OpenAI's interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rag: Option<RagTrace>,
}

impl ResponseObject {
    /// The response without what was not asked for.
    pub(super) fn shown(&self, show: Show) -> ResponseObject {
        let mut shown = self.clone();
        shown.output.iter_mut().for_each(|item| item.strip(show));
        shown
    }

    /// Marks what is not complete as broken off.
    pub(super) fn break_off(&mut self) {
        for item in &mut self.output {
            let status = item.status();
            if *status == ItemStatus::InProgress {
                *status = ItemStatus::Incomplete;
            }
        }
    }

    /// The text of the answer so far, or of the refusal.
    pub(super) fn text(&self) -> String {
        let messages = self.output.iter().filter_map(|item| match item {
            OutputItem::Message(message) => Some(&message.content),
            _ => None,
        });
        messages.flatten().map(MessagePart::text).collect()
    }
}

/// How far a response is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    /// It waits for a place in the engine.
    Queued,
    /// It is being made.
    InProgress,
    /// It is complete.
    Completed,
    /// A bound was reached before it was complete.
    Incomplete,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl ResponseStatus {
    /// Whether nothing more will come.
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

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResponseFault {
    /// `server_error`, or `invalid_prompt` where the request was at fault.
    pub code: &'static str,
    /// One sentence for a person.
    pub message: String,
}

impl From<&ApiError> for ResponseFault {
    fn from(error: &ApiError) -> Self {
        let code = if error.code.status().is_server_error() { "server_error" } else { "invalid_prompt" };
        Self { code, message: error.message.clone() }
    }
}

/// Why a response is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct IncompleteDetails {
    /// The bound that was reached.
    pub reason: Bound,
}

/// A bound of a response. The last two are not in OpenAI's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Sampled tokens, or the context.
    MaxOutputTokens,
    /// Rounds with the environment, its searches or the tokens of what it said, without an answer.
    MaxToolCalls,
    /// Wall time.
    MaxTime,
}

/// The bound that `reason` speaks of, if it speaks of one.
pub(super) fn bound(reason: Reason) -> Option<Bound> {
    match reason {
        Reason::Stop | Reason::Refused => None,
        Reason::Length => Some(Bound::MaxOutputTokens),
        Reason::Turns => Some(Bound::MaxToolCalls),
        Reason::Time => Some(Bound::MaxTime),
    }
}

/// What a response cost in tokens and searches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct ResponseUsage {
    /// Tokens of the prompt.
    pub input_tokens: usize,
    /// Parts of `input_tokens`.
    pub input_tokens_details: InputTokensDetails,
    /// Tokens the policy produced: sampled ones, and those a protocol put in its mouth.
    pub output_tokens: usize,
    /// Parts of `output_tokens`.
    pub output_tokens_details: OutputTokensDetails,
    /// The sum of the two.
    pub total_tokens: usize,
    /// Tokens of evidence and other observations, which neither count holds. Not in OpenAI's interface.
    pub environment_tokens: usize,
    /// Searches that were executed. Not in OpenAI's interface.
    pub searches: usize,
    /// How long they took, in milliseconds. Not in OpenAI's interface.
    pub search_ms: f64,
}

/// Parts of the prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct InputTokensDetails {
    /// Tokens whose KV the prefix cache held.
    pub cached_tokens: usize,
    /// Always 0: writing to the cache costs nothing here.
    pub cache_write_tokens: usize,
}

/// Parts of the output's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct OutputTokensDetails {
    /// Tokens that went into reasoning and queries.
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

/// How a response reasons: as the policy was trained.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
pub struct ReasoningOptions {
    /// Always null.
    #[schema(required)]
    pub effort: Option<&'static str>,
    /// Always null.
    #[schema(required)]
    pub summary: Option<&'static str>,
}

/// How the answer is written.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct TextOptions {
    /// As in the request.
    pub format: TextFormat,
}
