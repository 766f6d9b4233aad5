//! Bodies of requests that generate tokens, in both dialects.

use std::collections::BTreeMap;

use serde::Serialize;
use waymark_engine::StopSet;
use waymark_models::sampler::SamplingParams;

use crate::config::EngineKind;

/// Route over which an engine generates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `/inference/v1/generate`: token IDs in and out.
    Generate,
    /// `/v1/completions` with `return_token_ids`, on servers without `/inference/v1/generate`.
    Completions,
}

impl Dialect {
    /// Returns the path of the route.
    pub(super) fn path(self) -> &'static str {
        match self {
            Dialect::Generate => "/inference/v1/generate",
            Dialect::Completions => "/v1/completions",
        }
    }
}

/// Request for tokens that continue a sequence.
#[derive(Debug)]
pub(super) struct TokenRequest<'a> {
    pub(super) model: &'a str,
    pub(super) ids: &'a [u32],
    pub(super) sampling: &'a SamplingParams,
    pub(super) seed: u64,
    pub(super) max_tokens: usize,
    /// Minimum number of tokens. Tokens that end the generation are not sampled before.
    pub(super) min_tokens: usize,
    pub(super) stops: &'a StopSet,
    /// If `true`, the generation starts at the beginning of the turn, which is the beginning of a line.
    pub(super) begins: bool,
    /// Tokens that end the generation.
    pub(super) eos: &'a [u32],
    pub(super) allow: Option<&'a [u32]>,
    /// Number of alternatives per token of the sequence, if it is to be scored. Such a request is not streamed.
    pub(super) score: Option<usize>,
    /// Salt of the prefix cache. 0 shares the cache.
    pub(super) salt: u64,
}

#[derive(Serialize)]
struct GenerateBody<'a> {
    model: &'a str,
    token_ids: &'a [u32],
    sampling_params: Params<'a>,
    #[serde(flatten)]
    common: Common,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_mode: Option<&'static str>,
}

#[derive(Serialize)]
struct CompletionsBody<'a> {
    model: &'a str,
    prompt: &'a [u32],
    return_token_ids: bool,
    /// Lists the alternatives of a token by their IDs. Otherwise they are texts, of which several tokens may have the
    /// same.
    #[serde(skip_serializing_if = "Option::is_none")]
    return_tokens_as_token_ids: Option<bool>,
    #[serde(flatten)]
    params: Params<'a>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Serialize)]
struct Common {
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<String>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// Sampling parameters. Those without effect are left out, unless the server would fill in its own defaults.
#[derive(Serialize)]
struct Params<'a> {
    max_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_tokens: Option<usize>,
    temperature: f32,
    seed: i64,
    logprobs: usize,
    /// Always `true`, because the end-of-sequence tokens are in `stop_token_ids` instead.
    ignore_eos: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    logit_bias: BTreeMap<u32, f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    stop_token_ids: &'a [u32],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stop: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stop_lines: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    include_stop_str_in_output: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<usize>,
}

impl TokenRequest<'_> {
    /// Returns the body for an engine.
    pub(super) fn body(&self, kind: EngineKind, dialect: Dialect) -> serde_json::Result<Vec<u8>> {
        let streams = self.score.is_none();
        let common = Common {
            stream: streams,
            stream_options: streams.then_some(StreamOptions { include_usage: true }),
            cache_salt: (self.salt != 0).then(|| format!("{:016x}", self.salt)),
        };
        let passes_stops = self.passes_stops(kind, dialect);
        let params = self.params(passes_stops, kind, dialect);
        match dialect {
            Dialect::Generate => {
                // vLLM looks for stop strings only if it also decodes.
                let text = passes_stops && kind == EngineKind::Vllm;
                let output_mode = text.then_some("text");
                let sampling_params = params;
                let body =
                    GenerateBody { model: self.model, token_ids: self.ids, sampling_params, common, output_mode };
                serde_json::to_vec(&body)
            }
            Dialect::Completions => {
                let body = CompletionsBody {
                    model: self.model,
                    prompt: self.ids,
                    return_token_ids: true,
                    return_tokens_as_token_ids: (self.sampling.top_logprobs > 0).then_some(true),
                    params,
                    common,
                };
                serde_json::to_vec(&body)
            }
        }
    }

    /// Returns the number of stops that are sent to the engine: the first ones of the set. At any other stop, the
    /// stream is closed.
    pub(super) fn sent_stops(&self, kind: EngineKind, dialect: Dialect) -> usize {
        match kind {
            EngineKind::Waymark if self.begins => self.stops.len(),
            EngineKind::Waymark => self.stops.strings().count(),
            EngineKind::Vllm if self.passes_stops(kind, dialect) => self.stops.strings().count(),
            EngineKind::Vllm => 0,
        }
    }

    /// Returns `true` if the engine is told the stop strings.
    fn passes_stops(&self, kind: EngineKind, dialect: Dialect) -> bool {
        if self.score.is_some() || self.stops.strings().all(<[u8]>::is_empty) {
            return false;
        }
        // In vLLM's text mode the alternatives of a token are texts without IDs.
        kind == EngineKind::Waymark || dialect == Dialect::Completions || self.sampling.top_logprobs == 0
    }

    fn params(&self, passes_stops: bool, kind: EngineKind, dialect: Dialect) -> Params<'_> {
        let sampling = self.sampling;
        // On this route, vLLM fills what is left out from the model's `generation_config.json`.
        let has_defaults = dialect == Dialect::Completions;
        let changed = |value: f32, neutral: f32| (has_defaults || value != neutral).then_some(value);
        let stop = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok().filter(|text| !text.is_empty());
        // In the middle of a turn, the engine would mistake the middle of a line for its beginning.
        let told_lines = kind == EngineKind::Waymark && self.begins && self.score.is_none();
        Params {
            max_tokens: self.max_tokens,
            min_tokens: (self.min_tokens > 0).then_some(self.min_tokens),
            temperature: if sampling.is_greedy() { 0.0 } else { sampling.temperature },
            // Engines take the seed as a signed number.
            seed: self.seed.cast_signed(),
            // The completions route reports nothing at 0.
            logprobs: if dialect == Dialect::Completions {
                sampling.top_logprobs.max(1)
            } else {
                sampling.top_logprobs
            },
            ignore_eos: true,
            top_p: changed(sampling.top_p, 1.0),
            top_k: (has_defaults || sampling.top_k > 0).then_some(sampling.top_k),
            min_p: changed(sampling.min_p, 0.0),
            repetition_penalty: changed(sampling.repetition_penalty, 1.0),
            frequency_penalty: changed(sampling.frequency_penalty, 0.0),
            presence_penalty: changed(sampling.presence_penalty, 0.0),
            // The range of OpenAI's interface; its ends decide as much as an infinite bias.
            logit_bias: sampling.logit_bias.iter().map(|&(id, bias)| (id, bias.clamp(-100.0, 100.0))).collect(),
            allowed_token_ids: self.allow,
            stop_token_ids: self.eos,
            stop: if passes_stops { self.stops.strings().filter_map(stop).collect() } else { Vec::new() },
            stop_lines: if told_lines { self.stops.labels().filter_map(stop).collect() } else { Vec::new() },
            include_stop_str_in_output: passes_stops.then_some(true),
            prompt_logprobs: self.score,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn body(kind: EngineKind, dialect: Dialect, sampling: &SamplingParams, allow: Option<&[u32]>) -> Value {
        let stops = StopSet::new(["</search>"]).with_lines(["Query:"]);
        let request = TokenRequest {
            model: "tiny",
            ids: &[1, 2],
            sampling,
            seed: u64::MAX,
            max_tokens: 4,
            min_tokens: 0,
            stops: &stops,
            begins: true,
            eos: &[9],
            allow,
            score: None,
            salt: 10,
        };
        serde_json::from_slice(&request.body(kind, dialect).unwrap()).unwrap()
    }

    #[test]
    fn a_body_says_only_what_has_an_effect() {
        let sampling = SamplingParams { logit_bias: vec![(7, -1e9)], ..SamplingParams::greedy() };
        let expected = json!({
            "model": "tiny", "token_ids": [1, 2], "stream": true, "stream_options": {"include_usage": true},
            "cache_salt": "000000000000000a", "output_mode": "text",
            "sampling_params": {
                "max_tokens": 4, "temperature": 0.0, "seed": -1, "logprobs": 0, "ignore_eos": true,
                "logit_bias": {"7": -100.0}, "stop_token_ids": [9], "stop": ["</search>"],
                "include_stop_str_in_output": true,
            },
        });
        assert_eq!(body(EngineKind::Vllm, Dialect::Generate, &sampling, None), expected);
        let waymark = body(EngineKind::Waymark, Dialect::Generate, &sampling, None);
        assert!(waymark.get("output_mode").is_none() && waymark["sampling_params"]["stop"][0] == "</search>");
        assert_eq!(waymark["sampling_params"]["stop_lines"], json!(["Query:"]));
        let completions = body(EngineKind::Vllm, Dialect::Completions, &sampling, Some(&[3]));
        assert_eq!((&completions["prompt"], &completions["return_token_ids"]), (&json!([1, 2]), &json!(true)));
        assert_eq!((&completions["logprobs"], &completions["allowed_token_ids"]), (&json!(1), &json!([3])));
        assert!(completions.get("return_tokens_as_token_ids").is_none());
    }

    #[test]
    fn neutral_parameters_replace_the_defaults_of_the_completions_route() {
        let completions = body(EngineKind::Vllm, Dialect::Completions, &SamplingParams::greedy(), None);
        let neutral = json!({
            "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
        });
        for (name, value) in neutral.as_object().unwrap() {
            assert_eq!(&completions[name], value, "{name}");
        }
    }

    #[test]
    fn alternatives_need_ids_and_so_the_stops_stay_here() {
        let sampling = SamplingParams { top_logprobs: 2, top_k: 5, ..SamplingParams::default() };
        let completions = body(EngineKind::Vllm, Dialect::Completions, &sampling, None);
        assert_eq!(completions["return_tokens_as_token_ids"], json!(true));
        let body = body(EngineKind::Vllm, Dialect::Generate, &sampling, None);
        assert!(body.get("output_mode").is_none() && body["sampling_params"].get("stop").is_none());
        assert_eq!((&body["sampling_params"]["logprobs"], &body["sampling_params"]["top_k"]), (&json!(2), &json!(5)));
    }
}
