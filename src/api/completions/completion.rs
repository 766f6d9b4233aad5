//! What `POST /v1/completions` answers: whole completions and chunks of them.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::chat::completion::FinishReason;
use crate::api::error::ErrorBody;
use crate::api::usage::ChatUsage;

/// A whole completion.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion {
    /// Names this completion.
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// When it was begun, in seconds since 1970.
    pub created: u64,
    /// The policy that wrote it.
    pub model: String,
    /// The answers: those to the first prompt, then those to the second, and so on.
    pub choices: Vec<CompletionChoice>,
    /// What it cost.
    pub usage: ChatUsage,
    /// Changes with the version of the server, the weights, and what the files of the policy hold.
    pub system_fingerprint: String,
}

/// One answer, or a piece of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// What was written, or what of it is new.
    pub text: String,
    /// Its number, from 0.
    pub index: usize,
    /// The log-probabilities of its tokens, when asked for.
    #[schema(required)]
    pub logprobs: Option<TextLogProbs>,
    /// Why it ended; in a stream null until the last piece, whose text is empty.
    #[schema(required)]
    pub finish_reason: Option<FinishReason>,
}

/// Log-probabilities of a text, in four lists of the same length.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct TextLogProbs {
    /// The tokens as text; one that is no UTF-8 by itself as `bytes:\xf0\x9f`.
    pub tokens: Vec<String>,
    /// Their natural log-probabilities under the full distribution.
    #[schema(value_type = Vec<Option<f32>>)]
    pub token_logprobs: Vec<Option<f32>>,
    /// The most probable tokens in the place of each, and the one that was chosen, by their texts; null when none were
    /// asked for.
    #[schema(required, value_type = Option<Vec<Object>>)]
    pub top_logprobs: Option<Vec<Map<String, Value>>>,
    /// Where in the text each begins, in characters.
    pub text_offset: Vec<usize>,
}

/// One event of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChunk<'a> {
    /// Names the completion.
    pub id: &'a str,
    /// Always `text_completion`.
    pub object: &'static str,
    /// When it was begun, in seconds since 1970.
    pub created: u64,
    /// The policy that writes.
    pub model: &'a str,
    /// Changes with the version of the server, the weights, and what the files of the policy hold.
    pub system_fingerprint: &'a str,
    /// A piece of one answer, or nothing in the chunk that holds the usage.
    pub choices: &'a [CompletionChoice],
    /// With `include_usage`: null but in the last chunk. Without: left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ChatUsage>)]
    pub usage: Option<Option<&'a ChatUsage>>,
}

/// What a stream's `data:` lines hold before `[DONE]`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum CompletionStreamItem<'a> {
    /// A chunk.
    Chunk(CompletionChunk<'a>),
    /// What went wrong after the stream had begun; nothing follows it.
    Error(ErrorBody),
}
