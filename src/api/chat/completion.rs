//! What `POST /v1/chat/completions` answers: whole completions and chunks of them.

use serde::Serialize;
use utoipa::ToSchema;

use super::tool::{CallDelta, ToolCall};
use crate::agent::Reason;
use crate::api::error::ErrorBody;
use crate::api::rag::RagNotes;
use crate::api::usage::ChatUsage;

/// A whole completion.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Names this completion.
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// When it was begun, in seconds since 1970.
    pub created: u64,
    /// The policy that answered.
    pub model: String,
    /// The answers, in the order of their index.
    pub choices: Vec<ChatChoice>,
    /// What it cost.
    pub usage: ChatUsage,
    /// Changes with the version of the server, the weights, and what the files of the policy hold.
    pub system_fingerprint: String,
}

/// One answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Its number, from 0.
    pub index: usize,
    /// The answer.
    pub message: AssistantMessage,
    /// The log-probabilities of the answer's tokens, when asked for.
    #[schema(required)]
    pub logprobs: Option<LogProbs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// An answer as a message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: AssistantRole,
    /// The answer; empty when the policy gave none, null when it refuses to, or calls tools and says nothing.
    #[schema(required)]
    pub content: Option<String>,
    /// Why the policy gives no answer, where it says that it can give none; only some protocols let it.
    #[schema(required)]
    pub refusal: Option<String>,
    /// The calls of tools, where there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<ToolCall>>)]
    pub tool_calls: Vec<ToolCall>,
    /// What the policy thought on the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same, where the server is started with `--mirror-reasoning`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// What it did on the way, when `rag.trace` was asked for, and what supports its answer, when `rag.citations` was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RagNotes>)]
    pub rag: Option<RagNotes>,
}

/// The role of every answer.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AssistantRole {
    /// The only one.
    #[default]
    Assistant,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// By itself, with an answer or a refusal, or at a stop string.
    Stop,
    /// At a bound: sampled tokens, turns, time, or the context.
    Length,
    /// By itself, or at a stop string, with calls of tools.
    ToolCalls,
}

impl From<Reason> for FinishReason {
    fn from(reason: Reason) -> FinishReason {
        match reason {
            Reason::Stop | Reason::Refused => FinishReason::Stop,
            Reason::Length | Reason::Turns | Reason::Time => FinishReason::Length,
        }
    }
}

/// Log-probabilities of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct LogProbs {
    /// One entry per token.
    #[schema(required)]
    pub content: Option<Vec<LogProb>>,
    /// Always null.
    #[schema(required)]
    pub refusal: Option<Vec<LogProb>>,
}

/// A token with its log-probability and its alternatives.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LogProb {
    /// The token as text; bytes that are no UTF-8 by themselves appear as U+FFFD.
    pub token: String,
    /// Its natural log-probability under the full distribution.
    pub logprob: f32,
    /// Its bytes.
    #[schema(required)]
    pub bytes: Option<Vec<u8>>,
    /// The most probable tokens in its place.
    pub top_logprobs: Vec<TopLogProb>,
}

/// An alternative to a token.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TopLogProb {
    /// The token as text.
    pub token: String,
    /// Its natural log-probability.
    pub logprob: f32,
    /// Its bytes.
    #[schema(required)]
    pub bytes: Option<Vec<u8>>,
}

/// One event of a stream. Every chunk of a stream has the same first five fields.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChunk<'a> {
    /// Names the completion.
    pub id: &'a str,
    /// Always `chat.completion.chunk`.
    pub object: &'static str,
    /// When it was begun, in seconds since 1970.
    pub created: u64,
    /// The policy that answers.
    pub model: &'a str,
    /// Changes with the version of the server, the weights, and what the files of the policy hold.
    pub system_fingerprint: &'a str,
    /// One choice, or none in the chunk that holds the usage.
    pub choices: &'a [ChunkChoice<'a>],
    /// With `include_usage`: null but in the last chunk. Without: left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ChatUsage>)]
    pub usage: Option<Option<&'a ChatUsage>>,
}

/// A piece of one answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkChoice<'a> {
    /// The answer's number, from 0.
    pub index: usize,
    /// What is new.
    pub delta: Delta<'a>,
    /// The log-probabilities of the tokens in `delta.content`, when asked for.
    #[schema(required)]
    pub logprobs: Option<LogProbs>,
    /// Null until the last chunk of this answer, whose delta holds nothing but the citations that were asked for.
    #[schema(required)]
    pub finish_reason: Option<FinishReason>,
}

/// What is new in a chunk.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Delta<'a> {
    /// In the first chunk of each answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<AssistantRole>,
    /// Text of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// Why there is no answer, whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<&'a str>,
    /// What is new of a call of a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<CallDelta<'a>>>,
    /// Text of the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// The same, where the server is started with `--mirror-reasoning`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<&'a str>,
    /// A step of the run, when `rag.trace` was asked for; at the end what supports the answer, when `rag.citations` was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rag: Option<&'a RagNotes>,
}

/// What a stream's `data:` lines hold before `[DONE]`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ChatStreamItem<'a> {
    /// A chunk.
    Chunk(ChatChunk<'a>),
    /// What went wrong after the stream had begun; nothing follows it.
    Error(ErrorBody),
}
