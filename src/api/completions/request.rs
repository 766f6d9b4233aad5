//! What `POST /v1/completions` takes.

use std::collections::BTreeMap;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::api::body::Wire;
use crate::api::chat::request::StreamOptions;
use crate::api::knobs::Stop;

/// A completion request. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// The policy whose weights write, by its name in `/v1/models`.
    pub model: String,
    /// What is continued: one text or several, as text or as token ids; 64 answers at most, `n` for each.
    pub prompt: Prompt,
    /// Whether to answer with server-sent events.
    pub stream: Option<bool>,
    /// Options of the stream; only with `stream: true`.
    pub stream_options: Option<StreamOptions>,
    /// How many answers to give to each prompt.
    #[schema(minimum = 1, maximum = 16)]
    pub n: Option<u32>,
    /// Bounds the tokens sampled; 16 when not given.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// Whether each answer begins with its prompt; not together with `logprobs`.
    pub echo: Option<bool>,
    /// How many alternatives to return per token; returns no log-probabilities when not given.
    #[schema(minimum = 0, maximum = 5)]
    pub logprobs: Option<u32>,
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
    /// Divides the logits of tokens seen before. Not in OpenAI's interface.
    #[schema(minimum = 0.01, maximum = 10)]
    pub repetition_penalty: Option<f32>,
    /// Lowers tokens by how often they were sampled.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Lowers tokens that were sampled at all.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    /// Added to the logits of tokens, by token id.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Makes sampling repeatable.
    pub seed: Option<i64>,
    /// The answer ends before any of these.
    pub stop: Option<Stop>,
    /// False keeps no trace of it (`/v1/traces`). Not in OpenAI's interface.
    pub store: Option<bool>,
    /// Who asks, for the log.
    pub user: Option<String>,
}

impl Wire for CompletionRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] =
        &[("best_of", &["1"]), ("stream_options.include_obfuscation", &["false"]), ("suffix", &["\"\""])];
}

/// One prompt or several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string, a list of strings, a list of token ids or a list of such lists")]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// Token ids.
    Ids(Vec<u32>),
    /// Several lists of token ids.
    IdLists(Vec<Vec<u32>>),
}
