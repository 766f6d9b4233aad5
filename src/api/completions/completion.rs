//! Response types of `POST /v1/completions`: whole completions and chunks.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use waymark_index::AnswerCut;

use crate::api::chat::completion::FinishReason;
use crate::api::error::ErrorBody;
use crate::api::usage::ChatUsage;

/// A whole completion.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Completion)]
pub struct TextCompletion {
    /// ID of this completion.
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Policy that wrote the completion.
    pub model: String,
    /// Answers: first those to the first prompt, then those to the second, and so on.
    pub choices: Vec<CompletionChoice>,
    /// Tokens used.
    pub usage: ChatUsage,
    /// Hash of the server's version, the weights and the policy's files. Changes when any of them does.
    pub system_fingerprint: String,
    /// Tokens whose log-probabilities are missing because the answer is too large. Not in OpenAI's interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<AnswerCut>,
}

/// One answer, or a piece of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Text of the answer; in a stream, the new text.
    pub text: String,
    /// Index of the answer, from 0.
    pub index: usize,
    /// Log-probabilities of the answer's tokens, if requested.
    #[schema(required)]
    pub logprobs: Option<TextLogProbs>,
    /// Reason the answer ended. In a stream, null until the last piece, whose text is empty.
    #[schema(required)]
    pub finish_reason: Option<FinishReason>,
}

/// Log-probabilities of a text, as lists of the same length.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct TextLogProbs {
    /// Text of each token. A token that is not UTF-8 by itself is written as `bytes:\xf0\x9f`.
    pub tokens: Vec<String>,
    /// Natural logarithms of the tokens' probabilities under the full distribution.
    #[schema(value_type = Vec<Option<f32>>)]
    pub token_logprobs: Vec<Option<f32>>,
    /// Most probable tokens at each position and the sampled one, by their texts. Null if none were requested.
    #[schema(required, value_type = Option<Vec<Object>>)]
    pub top_logprobs: Option<Vec<Map<String, Value>>>,
    /// Offset of each token in the text, in characters.
    pub text_offset: Vec<usize>,
}

/// One event of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChunk<'a> {
    /// ID of the completion.
    pub id: &'a str,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Policy that writes the completion.
    pub model: &'a str,
    /// Hash of the server's version, the weights and the policy's files. Changes when any of them does.
    pub system_fingerprint: &'a str,
    /// Piece of one answer. Empty in the chunk that holds the usage.
    pub choices: &'a [CompletionChoice],
    /// Token usage. With `include_usage`, null in all chunks but the last; without, absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ChatUsage>)]
    pub usage: Option<Option<&'a ChatUsage>>,
}

/// Content of a stream's `data:` lines before `[DONE]`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum CompletionStreamItem<'a> {
    /// A chunk.
    Chunk(CompletionChunk<'a>),
    /// Error after the stream had begun. It is the last event.
    Error(ErrorBody),
}
