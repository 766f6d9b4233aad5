//! Decoder configuration from `config.json`.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Safetensors;
use super::experts::ExpertFields;
use crate::ModelError;
use crate::architecture::{Activation, Architecture, DecoderConfig, Family, RopeScaling};
use crate::weights::OutputProjection;

/// Relevant fields of the configurations of all families in `transformers`.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigFile {
    vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "default_context")]
    max_position_embeddings: usize,
    /// Context of the original training, which Phi-3 states outside of its rope scaling.
    original_max_position_embeddings: Option<usize>,
    #[serde(default = "default_eps")]
    rms_norm_eps: f32,
    rope_theta: Option<f32>,
    rope_scaling: Option<RopeFields>,
    /// Replaces both fields above in `transformers` 5.
    rope_parameters: Option<RopeSettings>,
    tie_word_embeddings: Option<bool>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    use_sliding_window: Option<bool>,
    use_bidirectional_attention: Option<bool>,
    /// Inverse of `use_bidirectional_attention` in `transformers` 5: `false` lets tokens see later ones.
    is_causal: Option<bool>,
    mlp_bias: Option<bool>,
    partial_rotary_factor: Option<f32>,
    #[serde(flatten)]
    pub(super) features: FeatureFields,
}

/// Fields that only some families have.
#[derive(Debug, Deserialize)]
pub(super) struct FeatureFields {
    pub(super) sliding_window: Option<usize>,
    /// Kind of each layer: `full_attention` or `sliding_attention`.
    pub(super) layer_types: Option<Vec<String>>,
    /// Former alternative to `layer_types` in Gemma 3: every n-th layer is global.
    pub(super) sliding_window_pattern: Option<usize>,
    /// Layers of SmolLM3 with a rotation (1) and without (0).
    pub(super) no_rope_layers: Option<Vec<u8>>,
    pub(super) no_rope_layer_interval: Option<usize>,
    pub(super) rope_local_base_freq: Option<f32>,
    pub(super) query_pre_attn_scalar: Option<f32>,
    pub(super) attn_logit_softcapping: Option<f32>,
    pub(super) final_logit_softcapping: Option<f32>,
    pub(super) embedding_multiplier: Option<f32>,
    pub(super) residual_multiplier: Option<f32>,
    pub(super) attention_multiplier: Option<f32>,
    pub(super) logits_scaling: Option<f32>,
    #[serde(flatten)]
    pub(super) experts: ExpertFields,
}

/// Rope parameters, for all layers or by the kind of layer (Gemma 3).
#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
enum RopeSettings {
    ByLayer { full_attention: RopeFields, sliding_attention: RopeFields },
    Same(RopeFields),
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
    /// Location of `partial_rotary_factor` in `transformers` 5.
    partial_rotary_factor: Option<f32>,
    short_factor: Option<Vec<f32>>,
}

impl TryFrom<Value> for RopeSettings {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];
        if KINDS.iter().all(|kind| value.get(kind).is_none()) {
            return Ok(Self::Same(RopeFields::parse("rope_parameters", &value)?));
        }
        let of = |kind: &str| {
            let fields = value.get(kind).ok_or_else(|| format!("rope_parameters has no {kind}"))?;
            RopeFields::parse(&format!("rope_parameters.{kind}"), fields)
        };
        let [full_attention, sliding_attention] = KINDS.map(of);
        Ok(Self::ByLayer { full_attention: full_attention?, sliding_attention: sliding_attention? })
    }
}

impl RopeFields {
    /// Parses the object that `config.json` has at `place`. The error names the field.
    fn parse(place: &str, value: &Value) -> Result<Self, String> {
        let fields = value.as_object().ok_or_else(|| format!("{place} is not an object"))?;
        for (name, value) in fields {
            // Every field is optional, so each can be parsed alone. Serde does not name a field of a wrong type.
            let alone = Map::from_iter([(name.clone(), value.clone())]);
            Self::deserialize(Value::Object(alone)).map_err(|error| format!("{place}.{name}: {error}"))?;
        }
        Self::deserialize(value).map_err(|error| format!("{place}: {error}"))
    }
}

impl RopeSettings {
    /// Parameters of layers that see all tokens.
    fn global(&self) -> &RopeFields {
        match self {
            Self::ByLayer { full_attention, .. } => full_attention,
            Self::Same(rope) => rope,
        }
    }
}

fn default_context() -> usize {
    2048
}

fn default_eps() -> f32 {
    1e-6
}

/// Parses `bytes`, the content of the `config.json` at `path`. Features that it does not state follow from the tensors.
pub(in crate::weights) fn read(
    path: &Path,
    bytes: &[u8],
    tensors: &Safetensors,
    projection: OutputProjection,
) -> Result<DecoderConfig, ModelError> {
    let corrupt = |reason: String| ModelError::Corrupt { path: path.into(), reason };
    // The model type is checked first: other architectures lack fields, and an error about a missing field would
    // mislead.
    let value: Value = serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
    let kind = value.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let unsupported = |what: String| ModelError::Unsupported { path: path.into(), what };
    let family = Family::of_model_type(&kind).map_err(unsupported)?;
    let config: ConfigFile = serde_json::from_value(value).map_err(|error| corrupt(error.to_string()))?;
    config.refuse(family, tensors, projection).map_err(unsupported)?;
    let rope_scaling = config.rope_scaling().map_err(unsupported)?;
    let architecture = config.architecture(family, tensors, config.context(&rope_scaling)).map_err(unsupported)?;
    let decoder = config.decoder(family, rope_scaling, architecture, tensors);
    decoder.check().map_err(|error| corrupt(error.to_string()))?;
    Ok(decoder)
}

impl ConfigFile {
    /// Returns an error for a setting that no supported decoder implements.
    fn refuse(&self, family: &Family, tensors: &Safetensors, projection: OutputProjection) -> Result<(), String> {
        let expected = match family.activation {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_pytorch_tanh",
        };
        // Gemma's former field, `hidden_act`, was not what its models computed with.
        let act = self.hidden_activation.as_deref().or(self.hidden_act.as_deref().filter(|_| !family.gemma));
        if let Some(act) = act.filter(|act| *act != expected) {
            return Err(format!("hidden_act {act}: expected {expected} in {}", family.model_type));
        }
        if self.use_sliding_window == Some(true) {
            return Err("use_sliding_window".to_owned());
        }
        if self.use_bidirectional_attention == Some(true) {
            return Err("use_bidirectional_attention".to_owned());
        }
        if self.is_causal == Some(false) {
            return Err("is_causal false".to_owned());
        }
        if self.mlp_bias == Some(true) || tensors.has("model.layers.0.self_attn.o_proj.bias") {
            return Err("a bias in the output or feed-forward projections".to_owned());
        }
        let needed = projection == OutputProjection::Needed;
        if needed && self.tie_word_embeddings == Some(false) && !tensors.has("lm_head.weight") {
            // Reward models, classifiers and embedders are saved without a head.
            return Err("model without a head: tie_word_embeddings is false, and there is no lm_head.weight".to_owned());
        }
        if let (Some(part), false) = (self.rotated_share(), family.partial_rotary) {
            return Err(format!("partial_rotary_factor {part}"));
        }
        Ok(())
    }

    /// Share of each head that is rotated. `None` rotates all of it.
    pub(super) fn rotated_share(&self) -> Option<f32> {
        let ropes = [self.rope_scaling.as_ref(), self.rope_parameters.as_ref().map(RopeSettings::global)];
        let shares = ropes.into_iter().flatten().map(|rope| rope.partial_rotary_factor);
        shares.chain([self.partial_rotary_factor]).flatten().find(|share| *share != 1.0)
    }

    /// Rotary base of layers with a sliding window, in families in which these layers have a separate one.
    pub(super) fn local_rope_base(&self) -> Result<f32, String> {
        let Some(RopeSettings::ByLayer { sliding_attention: rope, .. }) = &self.rope_parameters else {
            return Ok(self.features.rope_local_base_freq.unwrap_or(10_000.0));
        };
        match rope.rope_type.as_deref() {
            None | Some("default") => Ok(rope.rope_theta.unwrap_or(10_000.0)),
            Some(kind) => Err(format!("rope scaling {kind} in layers with a sliding window")),
        }
    }

    /// Width of a head.
    pub(super) fn head_dim(&self, family: &Family) -> usize {
        let per_head = self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0);
        self.head_dim.or(family.head_dim).unwrap_or(per_head)
    }

    fn decoder(
        &self,
        family: &Family,
        rope_scaling: RopeScaling,
        architecture: Architecture,
        tensors: &Safetensors,
    ) -> DecoderConfig {
        let rope = self.rope_parameters.as_ref().map(RopeSettings::global);
        let theta = rope.and_then(|rope| rope.rope_theta).or(self.rope_theta);
        DecoderConfig {
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim: self.head_dim(family),
            ffn: self.intermediate_size,
            context: self.context(&rope_scaling),
            rope_base: theta.unwrap_or(family.rope_base),
            rope_scaling,
            rms_eps: self.rms_norm_eps,
            tied_embeddings: self.tie_word_embeddings == Some(true) || !tensors.has("lm_head.weight"),
            architecture,
        }
    }

    /// Maximum length of a sequence.
    fn context(&self, rope_scaling: &RopeScaling) -> usize {
        let stated = self.max_position_embeddings;
        match (rope_scaling, self.original_context()) {
            // Factors for long contexts would change the keys of earlier tokens in the cache.
            (RopeScaling::Long { .. }, Some(original)) => stated.min(original),
            (RopeScaling::Yarn { factor, original_context, .. }, _) => {
                stated.max((factor * *original_context as f32) as usize)
            }
            _ => stated,
        }
    }

    /// Context of the original training. `None` if the file does not state it.
    fn original_context(&self) -> Option<usize> {
        let rope = self.rope_scaling.as_ref().or(self.rope_parameters.as_ref().map(RopeSettings::global));
        self.original_max_position_embeddings.or(rope.and_then(|rope| rope.original_max_position_embeddings))
    }

    fn rope_scaling(&self) -> Result<RopeScaling, String> {
        let global = self.rope_parameters.as_ref().map(RopeSettings::global);
        let Some(rope) = self.rope_scaling.as_ref().or(global) else {
            return Ok(RopeScaling::None);
        };
        let kind = rope.rope_type.as_deref().or(rope.former_type.as_deref()).unwrap_or("default");
        let factor = || rope.factor.ok_or_else(|| format!("rope scaling {kind} without a factor"));
        let original_context = self.original_context().unwrap_or(self.max_position_embeddings);
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
            "longrope" | "su" => {
                let factors = rope.short_factor.clone();
                let factors = factors.ok_or_else(|| format!("rope scaling {kind} without short_factor"))?;
                let stretch = rope.factor.unwrap_or(self.max_position_embeddings as f32 / original_context as f32);
                // Ding et al. 2024, §3.3.
                let usual = (1.0 + stretch.max(1.0).ln() / (original_context as f32).ln()).sqrt();
                Ok(RopeScaling::Long { factors, attention_factor: rope.attention_factor.unwrap_or(usual) })
            }
            other => Err(format!("rope scaling {other}")),
        }
    }
}
