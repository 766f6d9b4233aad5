//! Sampling as a policy file or a request states it: what is left out is taken from further back.

use serde::{Deserialize, Serialize};
use waymark_models::sampler::SamplingParams;

/// Some of the sampling parameters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most probable token.
    pub temperature: Option<f32>,
    /// Keeps the fewest most probable tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Keeps this many most probable tokens; 0 keeps all.
    pub top_k: Option<usize>,
    /// Keeps tokens at least this fraction as probable as the most probable one.
    pub min_p: Option<f32>,
    /// Makes tokens less probable that occurred in the turn at hand, or where generation is guided in the span at hand; 1 does
    /// nothing.
    pub repetition_penalty: Option<f32>,
    /// Subtracted from a logit per occurrence there.
    pub frequency_penalty: Option<f32>,
    /// Subtracted from a logit once for them.
    pub presence_penalty: Option<f32>,
    /// Added to the logits of these ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logit_bias: Vec<(u32, f32)>,
}

impl Sampling {
    /// Always the most probable token.
    pub fn greedy() -> Sampling {
        Sampling { temperature: Some(0.0), ..Sampling::default() }
    }

    /// These parameters where they are stated, else those of `back`.
    #[must_use]
    pub fn or(&self, back: &Sampling) -> Sampling {
        let logit_bias = if self.logit_bias.is_empty() { &back.logit_bias } else { &self.logit_bias };
        Sampling {
            temperature: self.temperature.or(back.temperature),
            top_p: self.top_p.or(back.top_p),
            top_k: self.top_k.or(back.top_k),
            min_p: self.min_p.or(back.min_p),
            repetition_penalty: self.repetition_penalty.or(back.repetition_penalty),
            frequency_penalty: self.frequency_penalty.or(back.frequency_penalty),
            presence_penalty: self.presence_penalty.or(back.presence_penalty),
            logit_bias: logit_bias.clone(),
        }
    }

    /// All parameters, those not stated at the model's own distribution.
    pub fn params(&self, seed: u64, top_logprobs: usize) -> SamplingParams {
        let off = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(off.temperature),
            top_p: self.top_p.unwrap_or(off.top_p),
            top_k: self.top_k.unwrap_or(off.top_k),
            min_p: self.min_p.unwrap_or(off.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(off.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(off.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(off.presence_penalty),
            logit_bias: self.logit_bias.clone(),
            seed,
            top_logprobs,
        }
    }
}
