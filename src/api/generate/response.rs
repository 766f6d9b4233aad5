//! Response types of `POST /inference/v1/generate`: whole responses and chunks.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;
use waymark_engine::TokenStep;

use crate::api::error::ErrorBody;
use crate::api::sampling_params::MIN_LOGPROB;
use crate::api::usage::PromptTokensDetails;

/// Sampled tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct GenerateResponse {
    /// ID of the request.
    pub request_id: String,
    /// Name of the base model, or of the policy whose adapter was used.
    pub model: String,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Tokens used.
    pub usage: GenerateUsage,
    /// Log-probabilities of the sequence's tokens, if requested: null for the first one, then an object per token whose
    /// keys are token IDs.
    #[schema(required, value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<Vec<Option<BTreeMap<String, PromptLogProb>>>>,
    /// Always `tokens`.
    pub output_mode: &'static str,
    /// The tokens; always one choice.
    pub choices: Vec<GenerateChoice>,
}

/// Token counts of a generation.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct GenerateUsage {
    /// Number of tokens of the sequence.
    pub prompt_tokens: usize,
    /// Sum of `prompt_tokens` and `completion_tokens`.
    pub total_tokens: usize,
    /// Number of sampled tokens.
    pub completion_tokens: usize,
    /// Details of `prompt_tokens`.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Sampled tokens, or some of them.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct GenerateChoice {
    /// Always 0.
    pub index: usize,
    /// `stop` or `length`. Null until the last tokens.
    #[schema(required)]
    pub finish_reason: Option<&'static str>,
    /// String, label or token ID of `sampling_params` that ended the generation.
    #[schema(required)]
    pub stop_reason: Option<StopReason>,
    /// Token IDs. The tokens that ended the generation are among them.
    pub token_ids: Vec<u32>,
    /// Log-probabilities of the tokens, if requested.
    #[schema(required)]
    pub logprobs: Option<GeneratedLogProbs>,
    /// Identity of the weights. Absent until the last tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_versions: Option<Vec<WeightVersion>>,
}

/// Cause of the end of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum StopReason {
    /// A stop string, or the label of a stop line.
    Text(String),
    /// A stop token.
    Token(u32),
}

/// Log-probabilities of sampled tokens.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct GeneratedLogProbs {
    /// One entry per token.
    pub content: Vec<GeneratedLogProb>,
}

/// Log-probability of a sampled token.
#[derive(Debug, Serialize, ToSchema)]
pub struct GeneratedLogProb {
    /// ID of the token.
    pub token_id: u32,
    /// Natural logarithm of its probability under the full distribution.
    pub logprob: f32,
    /// Most probable tokens at this position, best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<RankedLogProb>>)]
    pub top_logprobs: Vec<RankedLogProb>,
}

/// One of the most probable tokens at a position.
#[derive(Debug, Serialize, ToSchema)]
pub struct RankedLogProb {
    /// ID of the token.
    pub token_id: u32,
    /// Natural logarithm of its probability under the full distribution.
    pub logprob: f32,
    /// Rank of the token, from 1.
    pub rank: usize,
}

/// Log-probability of a token of the sequence.
#[derive(Debug, Serialize, ToSchema)]
pub struct PromptLogProb {
    /// Natural logarithm of its probability under the full distribution.
    pub logprob: f32,
    /// Rank of the token, from 1. Absent for a token that is not among the most probable ones listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
}

/// Weights that computed a range of the sampled tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct WeightVersion {
    /// Hash of the server's version, the weights and the policy's files.
    pub version: String,
    /// Index of the first token.
    pub start: usize,
    /// Index after the last token.
    pub end: usize,
}

/// One event of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct GenerateChunk<'a> {
    /// ID of the request.
    pub request_id: &'a str,
    /// Token counts, in the last chunk if `include_usage` was set; null otherwise.
    #[schema(required)]
    pub usage: Option<&'a GenerateUsage>,
    /// Always `tokens`.
    pub output_mode: &'static str,
    /// New tokens. Empty in the chunk that holds the usage.
    pub choices: &'a [GenerateChoice],
}

/// Content of a stream's `data:` lines before `[DONE]`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum GenerateStreamItem<'a> {
    /// A chunk.
    Chunk(GenerateChunk<'a>),
    /// Error after the stream had begun. It is the last event.
    Error(ErrorBody),
}

impl GenerateChoice {
    /// Appends a sampled token.
    pub(super) fn push(&mut self, step: &TokenStep, logprobs: bool) {
        self.token_ids.push(step.id);
        if logprobs {
            self.logprobs.get_or_insert_default().content.push(GeneratedLogProb::from(step));
        }
    }
}

impl From<&TokenStep> for GeneratedLogProb {
    fn from(step: &TokenStep) -> Self {
        let ranked = |(index, &(token_id, logprob)): (usize, &(u32, f32))| RankedLogProb {
            token_id,
            logprob: logprob.max(MIN_LOGPROB),
            rank: index + 1,
        };
        Self {
            token_id: step.id,
            logprob: step.logprob.max(MIN_LOGPROB),
            top_logprobs: step.top.iter().enumerate().map(ranked).collect(),
        }
    }
}

/// Returns the log-probabilities of a sequence whose tokens after the first one were scored by `steps`.
pub(super) fn prompt_logprobs(steps: &[TokenStep]) -> Vec<Option<BTreeMap<String, PromptLogProb>>> {
    let scored = steps.iter().map(|step| {
        let rank = |id: u32| step.top.iter().position(|&(other, _)| other == id).map(|index| index + 1);
        // The token itself is listed even if it is not among the most probable ones.
        let all = step.top.iter().copied().chain([(step.id, step.logprob)]);
        Some(
            all.map(|(id, logprob)| {
                (id.to_string(), PromptLogProb { logprob: logprob.max(MIN_LOGPROB), rank: rank(id) })
            })
            .collect(),
        )
    });
    // As in vLLM, the first token has no score, because nothing precedes it.
    std::iter::once(None).chain(scored).collect()
}
