//! Sampling parameters of a policy file or a request, merged over defaults.

use serde::{Deserialize, Serialize};
use waymark_models::sampler::SamplingParams;

/// A partial set of sampling parameters. `None` takes the value of the next level: the policy, then the model's own
/// distribution.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Divisor of the logits; 0 always takes the most probable token.
    pub temperature: Option<f32>,
    /// Keeps the smallest set of most probable tokens whose total probability reaches this value.
    pub top_p: Option<f32>,
    /// Keeps this many most probable tokens; 0 keeps all.
    pub top_k: Option<usize>,
    /// Keeps tokens at least this fraction as probable as the most probable one.
    pub min_p: Option<f32>,
    /// Penalty for tokens that occurred in the current turn, or in the current span of guided generation; 1 has no
    /// effect.
    pub repetition_penalty: Option<f32>,
    /// Value subtracted from a token's logit for each of its occurrences, counted as for `repetition_penalty`.
    pub frequency_penalty: Option<f32>,
    /// Value subtracted once from the logit of each token that occurred, counted as for `repetition_penalty`.
    pub presence_penalty: Option<f32>,
    /// Values added to the logits of these token ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logit_bias: Vec<(u32, f32)>,
}

impl Sampling {
    /// Returns greedy sampling: always the most probable token.
    pub fn greedy() -> Sampling {
        Sampling { temperature: Some(0.0), ..Sampling::default() }
    }

    /// Fills in missing parameters from `back`.
    #[must_use]
    pub fn or(&self, back: &Sampling) -> Sampling {
        // The list is replaced as a whole: a merged one could not take back a bias of the policy.
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

    /// Returns the complete parameters. Missing ones leave the model's own distribution unchanged.
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
