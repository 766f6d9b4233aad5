//! Response types of `POST /v1/chat/completions`: whole completions and chunks.

use serde::Serialize;
use utoipa::ToSchema;
use waymark_agent::EpisodeEnd;
use waymark_index::AnswerCut;

use super::tool::{CallDelta, ChatToolCall};
use crate::api::error::ErrorBody;
use crate::api::rag::RagNotes;
use crate::api::usage::ChatUsage;

/// A whole completion.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// ID of this completion.
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// The policy that answered.
    pub model: String,
    /// Answers, ordered by their index.
    pub choices: Vec<ChatChoice>,
    /// Tokens used.
    pub usage: ChatUsage,
    /// Hash of the server's version, the weights and the policy's files. Changes when any of them does.
    pub system_fingerprint: String,
    /// Class of service, if the request names one: always `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
    /// Tokens whose log-probabilities are missing because the answer is too large. Not in OpenAI's interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<AnswerCut>,
}

/// One answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Index of the answer, from 0.
    pub index: usize,
    /// The answer.
    pub message: AssistantMessage,
    /// Log-probabilities of the answer's tokens, if requested.
    #[schema(required)]
    pub logprobs: Option<LogProbs>,
    /// Reason the answer ended.
    pub finish_reason: FinishReason,
}

/// An answer as a message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: AssistantRole,
    /// Text of the answer. Empty if the policy gave none; null if the policy refused, or called tools without saying
    /// anything.
    #[schema(required)]
    pub content: Option<String>,
    /// Reason the policy gives for refusing to answer. Only some protocols support refusals.
    #[schema(required)]
    pub refusal: Option<String>,
    /// Tool calls, if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<ChatToolCall>>)]
    pub tool_calls: Vec<ChatToolCall>,
    /// Reasoning of the policy before its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Same text as `reasoning_content`, if the server runs with `--mirror-reasoning`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Steps of the episode if `rag.trace` was requested, and supporting passages if `rag.citations` was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RagNotes>)]
    pub rag: Option<RagNotes>,
}

/// The role of every answer.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AssistantRole {
    /// Role of the model, the only one an answer can have.
    #[default]
    Assistant,
}

/// Reason an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The policy ended with an answer or a refusal, or reached a stop string.
    Stop,
    /// A limit was reached: sampled tokens, turns, time, or the context.
    Length,
    /// The policy called tools.
    ToolCalls,
}

impl From<EpisodeEnd> for FinishReason {
    fn from(reason: EpisodeEnd) -> FinishReason {
        match reason {
            EpisodeEnd::Stop | EpisodeEnd::Refused => FinishReason::Stop,
            EpisodeEnd::Length | EpisodeEnd::Turns | EpisodeEnd::Time => FinishReason::Length,
            EpisodeEnd::Called => FinishReason::ToolCalls,
        }
    }
}

/// Log-probabilities of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct LogProbs {
    /// One entry per token, as sampled, also of a token that is shown only in part. White space that is removed at the
    /// ends of the answer has none.
    #[schema(required)]
    pub content: Option<Vec<LogProb>>,
    /// Always null.
    #[schema(required)]
    pub refusal: Option<Vec<LogProb>>,
}

/// A token with its log-probability and its alternatives.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LogProb {
    /// Text of the token. Bytes that are not UTF-8 by themselves appear as U+FFFD.
    pub token: String,
    /// Natural logarithm of its probability under the full distribution.
    pub logprob: f32,
    /// Bytes of the token.
    #[schema(required)]
    pub bytes: Option<Vec<u8>>,
    /// Most probable tokens at this position.
    pub top_logprobs: Vec<TopLogProb>,
}

/// Alternative to a token.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TopLogProb {
    /// Text of the token.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Bytes of the token.
    #[schema(required)]
    pub bytes: Option<Vec<u8>>,
}

/// One event of a stream. All chunks of a stream have the same first six fields.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChunk<'a> {
    /// ID of the completion.
    pub id: &'a str,
    /// Always `chat.completion.chunk`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// The policy that answers.
    pub model: &'a str,
    /// Hash of the server's version, the weights and the policy's files. Changes when any of them does.
    pub system_fingerprint: &'a str,
    /// Class of service, if the request names one: always `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
    /// One choice, or none in the chunk that holds the usage.
    pub choices: &'a [ChunkChoice<'a>],
    /// Token usage. With `include_usage`, null in all chunks but the last; without, absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ChatUsage>)]
    pub usage: Option<Option<&'a ChatUsage>>,
}

/// Piece of one answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkChoice<'a> {
    /// Index of the answer, from 0.
    pub index: usize,
    /// New content of the answer.
    pub delta: ChatDelta<'a>,
    /// Log-probabilities of the tokens in `delta.content`, if requested.
    #[schema(required)]
    pub logprobs: Option<LogProbs>,
    /// Reason the answer ended. Null until the answer's last chunk, whose delta holds at most the requested citations.
    #[schema(required)]
    pub finish_reason: Option<FinishReason>,
}

/// New content in a chunk.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Delta)]
pub struct ChatDelta<'a> {
    /// Role of the message, in the first chunk of each answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<AssistantRole>,
    /// Text of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// Complete refusal, if the policy refuses to answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<&'a str>,
    /// New parts of tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<CallDelta<'a>>>,
    /// Text of the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// Same text as `reasoning_content`, if the server runs with `--mirror-reasoning`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<&'a str>,
    /// Step of the episode, if `rag.trace` was requested. At the end the supporting passages, if `rag.citations` was
    /// requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rag: Option<&'a RagNotes>,
}

/// Content of a stream's `data:` lines before `[DONE]`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ChatStreamItem<'a> {
    /// A chunk.
    Chunk(ChatChunk<'a>),
    /// Error after the stream had begun. It is the last event.
    Error(ErrorBody),
}
