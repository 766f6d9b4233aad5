//! Request types of `POST /v1/completions`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::body::WireRequest;
use crate::api::chat::request::StreamOptions;
use crate::api::sampling_params::StopStrings;
use crate::api::vllm_options::StructuredOutputs;
use crate::keys::RequestPriority;

/// Completion request. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// Policy whose weights are used, by its name in `/v1/models`.
    pub model: String,
    /// Text to continue: one or several, as text or as token IDs. At most 64 answers in total, `n` for each.
    pub prompt: PromptInput,
    /// If `true`, the response is a stream of server-sent events.
    pub stream: Option<bool>,
    /// Options of the stream. Requires `stream: true`.
    pub stream_options: Option<StreamOptions>,
    /// Number of answers to each prompt.
    #[schema(minimum = 1, maximum = 16)]
    pub n: Option<u32>,
    /// Maximum number of tokens to sample; defaults to 16.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// If `true`, each answer begins with its prompt. Cannot be combined with `logprobs`.
    pub echo: Option<bool>,
    /// Number of most likely tokens to return at each position. If absent, no log-probabilities are returned.
    #[schema(minimum = 0, maximum = 5)]
    pub logprobs: Option<u32>,
    /// Sampling temperature.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f32>,
    /// Nucleus sampling: keeps the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Number of most probable tokens to keep; 0 and -1 keep all. Not in OpenAI's interface.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Minimum probability of a token relative to the most probable one. Not in OpenAI's interface.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens that occurred before. Not in OpenAI's interface.
    #[schema(minimum = 0.01, maximum = 10)]
    pub repetition_penalty: Option<f32>,
    /// Penalty on tokens by how often they were sampled.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Penalty on tokens that were sampled at all.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    /// Values added to the logits of tokens, by token ID.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Seed of the random number generator. The same seed gives the same samples, to each prompt as if it came alone.
    /// Random for each prompt by default.
    pub seed: Option<i64>,
    /// Strings that end the answer. The stop string itself is not returned.
    pub stop: Option<StopStrings>,
    /// Form of the answer. Not in OpenAI's interface.
    pub structured_outputs: Option<StructuredOutputs>,
    /// JSON schema of the answer: old name of `structured_outputs.json`. Not in OpenAI's interface.
    #[schema(value_type = Option<Object>)]
    pub guided_json: Option<Value>,
    /// Regular expression of the answer: old name of `structured_outputs.regex`. Not in OpenAI's interface.
    pub guided_regex: Option<String>,
    /// Texts, one of which is the answer: old name of `structured_outputs.choice`. Not in OpenAI's interface.
    pub guided_choice: Option<Vec<String>>,
    /// Lark grammar of the answer: old name of `structured_outputs.grammar`. Not in OpenAI's interface.
    pub guided_grammar: Option<String>,
    /// Up to 64 token IDs that end the answer, in addition to the model's own. The text of such a token is not
    /// returned. Only for policies that do not search. Not in OpenAI's interface.
    pub stop_token_ids: Option<Vec<u32>>,
    /// If `true`, the model's own end-of-sequence tokens do not end the answer. Only for policies that do not search.
    /// Not in OpenAI's interface.
    pub ignore_eos: Option<bool>,
    /// Number of tokens before which no end-of-sequence or stop token is sampled, at most the request's and the policy's
    /// maximum. Stop strings end the answer all the same. Only for policies that do not search. Not in OpenAI's interface.
    pub min_tokens: Option<u32>,
    /// If `false`, no trace is kept (`/v1/traces`). Not in OpenAI's interface.
    pub store: Option<bool>,
    /// Priority of the request relative to others: at most that of the key, which is also the default. Not in OpenAI's
    /// interface.
    pub priority: Option<RequestPriority>,
    /// Name of the end user, for the log.
    pub user: Option<String>,
}

impl WireRequest for CompletionRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[
        ("best_of", &["1"]),
        ("skip_special_tokens", &["true"]),
        ("spaces_between_special_tokens", &["true"]),
        ("include_stop_str_in_output", &["false"]),
        ("stream_options.include_obfuscation", &["false"]),
        ("suffix", &["\"\""]),
    ];
}

/// One prompt or several.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = Prompt)]
#[serde(untagged, expecting = "expected a string, a list of strings, a list of token ids or a list of such lists")]
pub enum PromptInput {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// Token IDs.
    Ids(Vec<u32>),
    /// Several lists of token IDs.
    IdLists(Vec<Vec<u32>>),
}
