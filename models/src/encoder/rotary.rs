//! Settings of encoders of the BERT kind with rotary positions and gates: NomicBERT (Nussbaum et al. 2024) and GTE's
//! own architecture (Zhang et al. 2024, mGTE), `new` in the configurations of its authors and `gte` in those of
//! transformers.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::family::EncoderFamily;
use super::gate::{ActivatedHalf, Gate, GateActivation};
use super::json_file::parse;
use super::modern::MAX_POSITIONS;
use crate::ModelError;
use crate::architecture::{MIN_ROPE_FACTOR, RopeScaling};
use crate::kernel::rope::Rope;

/// Base of NomicBERT's rotations where its configuration states none.
const NOMIC_THETA: f32 = 1000.0;

/// Base of GTE's rotations where its configuration states none.
const GTE_THETA: f32 = 160_000.0;

/// Rotations and gates of an encoder.
#[derive(Debug, Clone)]
pub(super) struct RotaryConfig {
    theta: f32,
    scaling: FrequencyScaling,
    activation: GateActivation,
    /// Maximum number of positions.
    pub(super) max_positions: usize,
}

/// Scaling of the rotary frequencies, which does not depend on the length of the text.
#[derive(Debug, Clone, Copy)]
enum FrequencyScaling {
    /// Frequencies divided by a number; 1 leaves them unchanged.
    Linear(f32),
    /// Base multiplied by a factor, and frequencies divided by a power of it (`NTKScalingRotaryEmbedding` of GTE's
    /// program).
    Ntk(f32),
}

/// Fields of `config.json`. Fields with a required value are kept as JSON in `others`, for
/// [`check`](RotaryFile::check).
#[derive(Deserialize)]
struct RotaryFile {
    hidden_act: Option<String>,
    /// Former name of `hidden_act`. Models trained with Nomic's own program may state both.
    activation_function: Option<String>,
    rope_theta: Option<f32>,
    rotary_emb_base: Option<f32>,
    rope_parameters: Option<RopeFields>,
    rope_scaling: Option<RopeFields>,
    rotary_scaling_factor: Option<f32>,
    max_trained_positions: Option<usize>,
    n_positions: Option<usize>,
    max_position_embeddings: Option<usize>,
    #[serde(flatten)]
    others: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct RopeFields {
    rope_type: Option<String>,
    /// Former name of the type.
    #[serde(rename = "type")]
    former_type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f32>,
    /// Exponent of a mixed scaling. It is refused, and no published model has it.
    mixed_b: Option<f32>,
}

impl RopeFields {
    fn kind(&self) -> Option<&str> {
        self.rope_type.as_deref().or(self.former_type.as_deref())
    }
}

impl RotaryConfig {
    /// Reads the settings from the `config.json` at `path`. `None` in families other than NomicBERT and GTE.
    pub(super) fn read(family: EncoderFamily, path: &Path) -> Result<Option<Self>, ModelError> {
        let required = match family {
            EncoderFamily::NomicBert => NOMIC_REQUIRED,
            EncoderFamily::Gte => GTE_REQUIRED,
            _ => return Ok(None),
        };
        let file: RotaryFile = parse(path)?;
        let config = file.check(required).and_then(|()| match family {
            EncoderFamily::NomicBert => file.nomic(),
            _ => file.gte(),
        });
        let config = config.map_err(|what| ModelError::Unsupported { path: path.to_owned(), what })?;
        let corrupt = |reason: String| Err(ModelError::Corrupt { path: path.to_owned(), reason });
        let (FrequencyScaling::Linear(factor) | FrequencyScaling::Ntk(factor)) = config.scaling;
        if !(config.theta.is_finite() && config.theta > 1.0) {
            return corrupt(format!("rotary base {} is not a finite number above 1", config.theta));
        }
        if !(factor.is_finite() && factor >= MIN_ROPE_FACTOR) {
            return corrupt(format!("rotary factor {factor} is not a finite number of at least {MIN_ROPE_FACTOR}"));
        }
        Ok(Some(config))
    }

    /// Rotations of heads of width `head` for `positions` positions.
    pub(super) fn rope(&self, head: usize, positions: usize) -> Rope {
        let (theta, factor) = match self.scaling {
            FrequencyScaling::Linear(factor) => (self.theta, factor),
            FrequencyScaling::Ntk(factor) => (self.theta * factor, factor.powf(2.0 / head as f32)),
        };
        let mut rope = Rope::new(head, theta, &RopeScaling::Linear { factor });
        rope.reserve(positions);
        rope
    }

    /// Activation of the feed-forward network.
    pub(super) fn gate(&self) -> Gate {
        // `fc12` of Nomic and the second half of GTE's `up_gate_proj` are activated.
        Gate { activation: self.activation, half: ActivatedHalf::Second }
    }
}

/// Fields that must have these values, or be absent, in NomicBERT.
const NOMIC_REQUIRED: &[(&str, RequiredValue)] = &[
    ("rotary_emb_fraction", RequiredValue::One),
    ("rotary_emb_interleaved", RequiredValue::False),
    ("rotary_emb_scale_base", RequiredValue::Zero),
    ("prenorm", RequiredValue::False),
    ("parallel_block", RequiredValue::False),
    ("use_rms_norm", RequiredValue::False),
    ("causal", RequiredValue::False),
    // Experts, as in nomic-embed-text-v2-moe, are not supported.
    ("num_experts", RequiredValue::Zero),
    ("moe_every_n_layers", RequiredValue::Zero),
];

/// Fields that must have these values, or be absent, in GTE's architecture.
const GTE_REQUIRED: &[(&str, RequiredValue)] = &[
    ("position_embedding_type", RequiredValue::Text("rope")),
    ("layer_norm_type", RequiredValue::Text("layer_norm")),
    ("pack_qkv", RequiredValue::True),
    ("logn_attention_scale", RequiredValue::False),
];

/// Only supported value of a field. A `null` counts as absent.
#[derive(Clone, Copy)]
enum RequiredValue {
    True,
    False,
    One,
    /// 0, as an integer or a float.
    Zero,
    Text(&'static str),
}

impl RequiredValue {
    fn is(self, value: &Value) -> bool {
        match self {
            RequiredValue::True => *value == Value::Bool(true),
            RequiredValue::False => *value == Value::Bool(false),
            RequiredValue::One => value.as_f64() == Some(1.0),
            RequiredValue::Zero => value.as_f64() == Some(0.0),
            RequiredValue::Text(text) => value.as_str() == Some(text),
        }
    }
}

impl RotaryFile {
    /// Returns an error for the first field that is stated with another value than the required one.
    fn check(&self, required: &[(&str, RequiredValue)]) -> Result<(), String> {
        let mut stated = required.iter().filter_map(|(field, only)| Some((field, only, self.others.get(*field)?)));
        match stated.find(|(_, only, value)| !value.is_null() && !only.is(value)) {
            Some((field, _, value)) => Err(format!("{field} {value}")),
            None => Ok(()),
        }
    }

    fn nomic(&self) -> Result<RotaryConfig, String> {
        let act = self.activation_function.as_deref().or(self.hidden_act.as_deref()).unwrap_or("swiglu");
        let activation = match act {
            "swiglu" | "silu" => GateActivation::Silu,
            "geglu" => GateActivation::Gelu,
            other => return Err(format!("activation_function {other:?}: expected \"swiglu\" or \"geglu\"")),
        };
        let rope = self.rope_parameters.as_ref();
        let stated = self.n_positions.max(self.max_position_embeddings).unwrap_or(MAX_POSITIONS);
        // With dynamic scaling, the rotations of longer texts depend on their length, so no fixed table would be right.
        let trained = self.max_trained_positions.or(self.max_position_embeddings).unwrap_or(stated);
        let max_positions = match rope.and_then(RopeFields::kind).unwrap_or("default") {
            "default" if self.rotary_scaling_factor.is_none() => stated,
            "default" | "dynamic" => trained,
            other => return Err(format!("rope_type {other:?}: expected \"default\" or \"dynamic\"")),
        };
        let theta = rope.and_then(|rope| rope.rope_theta).or(self.rotary_emb_base).or(self.rope_theta);
        let theta = theta.unwrap_or(NOMIC_THETA);
        Ok(RotaryConfig { theta, scaling: FrequencyScaling::Linear(1.0), activation, max_positions })
    }

    fn gte(&self) -> Result<RotaryConfig, String> {
        let act = self.hidden_act.as_deref().unwrap_or("gelu");
        if act != "gelu" {
            return Err(format!("hidden_act {act:?}: expected \"gelu\""));
        }
        // transformers states the rotations in one field; GTE's own program in two.
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let kind = rope.and_then(RopeFields::kind).unwrap_or("default");
        let scaling = match (kind, rope.and_then(|rope| rope.factor), rope.and_then(|rope| rope.mixed_b)) {
            ("default", _, None) => FrequencyScaling::Linear(1.0),
            ("linear", Some(factor), None) => FrequencyScaling::Linear(factor),
            // A factor of 1 or less leaves the frequencies as they are.
            ("ntk", Some(factor), None) if factor > 1.0 => FrequencyScaling::Ntk(factor),
            ("ntk", Some(_), None) => FrequencyScaling::Linear(1.0),
            (_, _, Some(_)) => return Err(format!("mixed_b in a rope scaling of type {kind:?}")),
            _ => {
                return Err(format!(
                    "rope scaling of type {kind:?}: expected \"default\", or \"linear\" or \"ntk\" with a factor"
                ));
            }
        };
        let max_positions = self.max_position_embeddings.unwrap_or(MAX_POSITIONS);
        let theta = rope.and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(GTE_THETA);
        Ok(RotaryConfig { theta, scaling, activation: GateActivation::Gelu, max_positions })
    }
}
