//! Decoder configuration from `config.json`.

use std::path::Path;

use serde::Deserialize;

use super::Safetensors;
use crate::ModelError;
use crate::decoder::{DecoderConfig, RopeScaling};

/// Relevant fields of `LlamaConfig`, `Qwen2Config` and `Qwen3Config` in `transformers`.
#[derive(Debug, Deserialize)]
struct ConfigFile {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "default_context")]
    max_position_embeddings: usize,
    #[serde(default = "default_eps")]
    rms_norm_eps: f32,
    rope_theta: Option<f32>,
    rope_scaling: Option<RopeFields>,
    /// Replaces both fields above in `transformers` 5.
    rope_parameters: Option<RopeFields>,
    tie_word_embeddings: Option<bool>,
    hidden_act: Option<String>,
    use_sliding_window: Option<bool>,
    mlp_bias: Option<bool>,
    partial_rotary_factor: Option<f32>,
}

#[derive(Debug, Deserialize)]
struct RopeFields {
    rope_type: Option<String>,
    /// Former name of the type. `transformers` 4 copied it to the new name and saved both.
    #[serde(rename = "type")]
    former_type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f32>,
    original_max_position_embeddings: Option<usize>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    attention_factor: Option<f32>,
    mscale: Option<f32>,
    truncate: Option<bool>,
    /// Location of this field in `transformers` 5.
    partial_rotary_factor: Option<f32>,
}

fn default_context() -> usize {
    2048
}

fn default_eps() -> f32 {
    1e-6
}

/// Reads the bytes of the `config.json` at `path`. Fields that it omits are derived from the tensors.
pub(in crate::weights) fn read(path: &Path, bytes: &[u8], tensors: &Safetensors) -> Result<DecoderConfig, ModelError> {
    let corrupt = |reason: String| ModelError::Corrupt { path: path.into(), reason };
    // The model type is checked first: other architectures lack fields, and an error about a missing field would
    // mislead.
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
    let kind = value.get("model_type").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    let unsupported = |what: String| ModelError::Unsupported { path: path.into(), what };
    if !matches!(kind.as_str(), "llama" | "qwen2" | "qwen3") {
        return Err(unsupported(format!("model_type {kind:?}: expected llama, qwen2 or qwen3")));
    }
    let config: ConfigFile = serde_json::from_value(value).map_err(|error| corrupt(error.to_string()))?;
    config.refuse(tensors).map_err(unsupported)?;
    let rope_scaling = config.rope_scaling().map_err(unsupported)?;
    let decoder = config.decoder(rope_scaling, tensors);
    decoder.check().map_err(|error| corrupt(error.to_string()))?;
    Ok(decoder)
}

impl ConfigFile {
    /// Returns an error for a setting that no supported decoder implements.
    fn refuse(&self, tensors: &Safetensors) -> Result<(), String> {
        if let Some(act) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(format!("hidden_act {act}"));
        }
        if self.use_sliding_window == Some(true) {
            return Err("use_sliding_window".to_owned());
        }
        if self.mlp_bias == Some(true) || tensors.has("model.layers.0.self_attn.o_proj.bias") {
            return Err("a bias in the output or feed-forward projections".to_owned());
        }
        if self.tie_word_embeddings == Some(false) && !tensors.has("lm_head.weight") {
            // Reward models, classifiers and embedders are saved without a head.
            return Err("model without a head: tie_word_embeddings is false, and there is no lm_head.weight".to_owned());
        }
        let ropes = [&self.rope_scaling, &self.rope_parameters].into_iter().flatten();
        let parts = ropes.map(|rope| rope.partial_rotary_factor).chain([self.partial_rotary_factor]);
        if let Some(part) = parts.flatten().find(|part| *part != 1.0) {
            return Err(format!("partial_rotary_factor {part}"));
        }
        Ok(())
    }

    fn decoder(&self, rope_scaling: RopeScaling, tensors: &Safetensors) -> DecoderConfig {
        let per_head = self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0);
        // The head width of Qwen3 is 128 for every hidden size, unless stated otherwise.
        let default_head = if self.model_type == "qwen3" { 128 } else { per_head };
        let theta = self.rope_parameters.as_ref().and_then(|rope| rope.rope_theta).or(self.rope_theta);
        let stretched = match rope_scaling {
            RopeScaling::Yarn { factor, original_context, .. } => (factor * original_context as f32) as usize,
            _ => 0,
        };
        DecoderConfig {
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim: self.head_dim.unwrap_or(default_head),
            ffn: self.intermediate_size,
            context: self.max_position_embeddings.max(stretched),
            rope_base: theta.unwrap_or(10_000.0),
            rope_scaling,
            rms_eps: self.rms_norm_eps,
            tied_embeddings: self.tie_word_embeddings == Some(true) || !tensors.has("lm_head.weight"),
            qkv_bias: tensors.has("model.layers.0.self_attn.q_proj.bias"),
            qk_norm: tensors.has("model.layers.0.self_attn.q_norm.weight"),
        }
    }

    fn rope_scaling(&self) -> Result<RopeScaling, String> {
        let Some(rope) = self.rope_scaling.as_ref().or(self.rope_parameters.as_ref()) else {
            return Ok(RopeScaling::None);
        };
        let kind = rope.rope_type.as_deref().or(rope.former_type.as_deref()).unwrap_or("default");
        let factor = || rope.factor.ok_or_else(|| format!("rope scaling {kind} without a factor"));
        let original_context = rope.original_max_position_embeddings.unwrap_or(self.max_position_embeddings);
        match kind {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: rope.low_freq_factor.unwrap_or(1.0),
                high_freq_factor: rope.high_freq_factor.unwrap_or(4.0),
                original_context,
            }),
            "yarn" if rope.mscale.is_some() => Err("rope scaling yarn with mscale".to_owned()),
            "yarn" if rope.truncate == Some(false) => Err("rope scaling yarn with truncate false".to_owned()),
            "yarn" => Ok(RopeScaling::Yarn {
                factor: factor()?,
                original_context,
                beta_fast: rope.beta_fast.unwrap_or(32.0),
                beta_slow: rope.beta_slow.unwrap_or(1.0),
                attention_factor: rope.attention_factor,
            }),
            other => Err(format!("rope scaling {other}")),
        }
    }
}
