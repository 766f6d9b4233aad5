//! Request type of `POST /inference/v1/generate`.

use std::collections::BTreeMap;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::api::body::WireRequest;
use crate::api::chat::request::StreamOptions;
use crate::api::sampling_params::StopStrings;

/// Token sequence to continue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GenerateRequest {
    /// Policy whose adapter is used, or the name of the base model. Defaults to the base model.
    pub model: Option<String>,
    /// Token IDs of the whole sequence.
    #[schema(min_items = 1)]
    pub token_ids: Vec<u32>,
    /// Sampling parameters.
    pub sampling_params: GenerateParams,
    /// If `true`, the tokens are streamed.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// Name of a cache: sequences share cached prefixes only with those of the same name and the same API key's tenant.
    #[schema(max_length = 256)]
    pub cache_salt: Option<String>,
}

impl WireRequest for GenerateRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[
        ("output_mode", &["\"tokens\""]),
        ("priority", &["0"]),
        ("sampling_params.n", &["1"]),
        ("sampling_params.structured_outputs", &[]),
        ("sampling_params.bad_words", &["[]"]),
        // The token IDs hold the stop string either way.
        ("sampling_params.include_stop_str_in_output", &["true", "false"]),
        ("sampling_params.detokenize", &["true", "false"]),
        ("sampling_params.skip_special_tokens", &["true", "false"]),
        ("sampling_params.trace_decode_token_ids", &[]),
    ];
}

/// Sampling parameters, with vLLM's names and defaults.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GenerateParams {
    /// Maximum number of sampled tokens. Default 16.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// Divisor of the logits; 0 always takes the most probable token. Default 1.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f32>,
    /// Keeps the most probable tokens with at least this total probability. Default 1.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Number of most probable tokens to keep. 0 and -1 keep all, the default.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Minimum probability as a fraction of the most probable token's. Default 0.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Factor on the logits of tokens already sampled in this request. Default 1.
    #[schema(minimum = 0.01, maximum = 10)]
    pub repetition_penalty: Option<f32>,
    /// Amount subtracted from a token's logit for each time it was sampled in this request. Default 0.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Amount subtracted once from the logit of a token sampled in this request. Default 0.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    /// Seed of the random sequence. Random by default.
    pub seed: Option<i64>,
    /// Amounts from -100 to 100 added to the logits of token IDs.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Token IDs that may be sampled. All by default.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Strings that end the generation with the token that completes one: one string, or up to 64.
    pub stop: Option<StopStrings>,
    /// Labels, up to 64: a line that begins with one ends the generation with its line break. The sequence's end counts as
    /// the beginning of a line. Not in vLLM.
    pub stop_lines: Option<Vec<String>>,
    /// Token IDs that end the generation, in addition to the model's own.
    pub stop_token_ids: Option<Vec<u32>>,
    /// If `true`, the model's own end-of-sequence tokens do not end the generation.
    pub ignore_eos: Option<bool>,
    /// Number of tokens before which none that ends the generation is sampled, even if `allowed_token_ids` lists it.
    pub min_tokens: Option<u32>,
    /// Number of alternatives per sampled token, from 0 to 20. Without it, no log-probabilities are sent.
    #[schema(maximum = 20)]
    pub logprobs: Option<u32>,
    /// Number of alternatives per token of the sequence, from 0 to 20. Computes the whole sequence again.
    #[schema(maximum = 20)]
    pub prompt_logprobs: Option<u32>,
}
