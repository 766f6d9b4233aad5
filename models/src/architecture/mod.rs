//! Description of the computation of a decoder: loaders fill it in, and all passes read it.
//!
//! `decoder_config`: the numbers of a decoder · `family`: the families of models, with their names in files and the
//! features of each · `experts`: feed-forward blocks among which a router chooses a few

mod decoder_config;
mod experts;
mod family;
#[cfg(test)]
mod page;

pub(crate) use decoder_config::MIN_ROPE_FACTOR;
pub use decoder_config::{DecoderConfig, RopeScaling};
pub(crate) use experts::ExpertNames;
pub use experts::Experts;
pub(crate) use family::{Family, WindowPattern, simplest};

/// Properties of a decoder's computation that differ between families. The default is that of Llama.
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    /// Family, by its `model_type` in `transformers`.
    pub family: &'static str,
    /// Position of the norms in a layer.
    pub norms: NormPlacement,
    /// If `true`, the query, key and value projections have a bias (Qwen2).
    pub qkv_bias: bool,
    /// Norm of queries and keys before the rotation.
    pub qk_norm: QkNorm,
    /// Activation of the gate in the feed-forward block.
    pub activation: Activation,
    /// Experts in place of feed-forward blocks. `None` if all layers have ordinary ones.
    pub experts: Option<Experts>,
    /// Number of values of each head that are rotated. `None` rotates all of them.
    pub rotary_dim: Option<usize>,
    /// Base of the unscaled rotary frequencies in layers with [`LayerRotary::Local`] (Gemma 3). `None` if no layer has
    /// it.
    pub local_rope_base: Option<f32>,
    /// Attention of each layer. Empty if all layers have the default.
    pub layers: Vec<LayerAttention>,
    /// Factor on the scores of attention. `None` means `1 / √head_dim`.
    pub attention_scale: Option<f32>,
    /// Soft limit `c` of the scores, which become `c · tanh(score / c)` (Gemma 2). `None` leaves them unlimited.
    pub score_cap: Option<f32>,
    /// Soft limit of the logits, with the same formula. `None` leaves them unlimited.
    pub logit_cap: Option<f32>,
    /// Factor on the embeddings.
    pub embedding_scale: f32,
    /// Factor on the output of each block before it is added to the residual stream (Granite).
    pub residual_scale: f32,
    /// Factor on the logits, before their limit.
    pub logit_scale: f32,
}

/// Position of the norms relative to the attention and feed-forward blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// On the input of each block.
    Before,
    /// On the output of each block, before it is added to the residual stream (OLMo 2).
    After,
    /// On both (Gemma 2 and 3).
    Around,
}

/// Norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head by itself (Qwen3, Gemma 3).
    Head,
    /// All heads together (OLMo 2).
    Whole,
}

/// Activation of the gate in the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU with the tanh approximation.
    GeluTanh,
}

/// Attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerAttention {
    /// Number of positions that a token sees, counting itself. `None` means all positions up to the token.
    pub window: Option<usize>,
    /// Rotation of queries and keys.
    pub rotary: LayerRotary,
}

/// Rotation of queries and keys in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerRotary {
    /// The decoder's base and scaling.
    Global,
    /// The base in [`Architecture::local_rope_base`].
    Local,
    /// No rotation (SmolLM3).
    None,
}

/// Names of the norms of a layer, without the layer's prefix. `None` where the layer has no such norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NormNames {
    pub(crate) attention_in: Option<&'static str>,
    pub(crate) attention_out: Option<&'static str>,
    pub(crate) ffn_in: Option<&'static str>,
    pub(crate) ffn_out: Option<&'static str>,
}

impl Default for Architecture {
    fn default() -> Self {
        Self {
            family: "llama",
            norms: NormPlacement::Before,
            qkv_bias: false,
            qk_norm: QkNorm::None,
            activation: Activation::Silu,
            experts: None,
            rotary_dim: None,
            local_rope_base: None,
            layers: Vec::new(),
            attention_scale: None,
            score_cap: None,
            logit_cap: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
        }
    }
}

impl Default for LayerAttention {
    fn default() -> Self {
        Self { window: None, rotary: LayerRotary::Global }
    }
}

impl NormPlacement {
    /// Names in Hugging Face checkpoints.
    pub(crate) fn names(self) -> NormNames {
        const FIRST: Option<&str> = Some("input_layernorm.weight");
        const SECOND: Option<&str> = Some("post_attention_layernorm.weight");
        const LAST: Option<&str> = Some("post_feedforward_layernorm.weight");
        match self {
            Self::Before => NormNames { attention_in: FIRST, attention_out: None, ffn_in: SECOND, ffn_out: None },
            Self::After => NormNames { attention_in: None, attention_out: SECOND, ffn_in: None, ffn_out: LAST },
            Self::Around => NormNames {
                attention_in: FIRST,
                attention_out: SECOND,
                ffn_in: Some("pre_feedforward_layernorm.weight"),
                ffn_out: LAST,
            },
        }
    }

    /// Number of norms in a layer.
    pub(crate) fn count(self) -> usize {
        if self == Self::Around { 4 } else { 2 }
    }
}

impl Architecture {
    /// Family of the model. Llama if the name is unknown.
    pub(crate) fn family(&self) -> &'static Family {
        Family::of_model_type(self.family).unwrap_or(Family::llama())
    }

    /// Attention of layer `index`.
    pub fn layer(&self, index: usize) -> LayerAttention {
        self.layers.get(index).copied().unwrap_or_default()
    }

    /// Experts of layer `index`. `None` if the layer has an ordinary feed-forward block.
    pub fn experts(&self, index: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.dense_layers.binary_search(&index).is_err())
    }

    /// First feature beyond those of Llama, Qwen2 and Qwen3, in words. `None` if there is none. Passes that support
    /// only these families name the feature when they refuse a model.
    pub fn extension(&self) -> Option<&'static str> {
        let default = LayerAttention::default();
        let features = [
            (self.norms != NormPlacement::Before, "norms after a block"),
            (self.qk_norm == QkNorm::Whole, "a norm over all query heads"),
            (self.activation != Activation::Silu, "the GELU activation"),
            (self.experts.is_some(), "experts"),
            (self.rotary_dim.is_some(), "rotation of a part of each head"),
            (self.layers.iter().any(|layer| layer.window.is_some()), "sliding-window attention"),
            (self.layers.iter().any(|layer| layer.rotary != default.rotary), "layers with another rotation or none"),
            (self.attention_scale.is_some(), "another scale of attention"),
            (self.score_cap.is_some() || self.logit_cap.is_some(), "soft limits of scores or logits"),
            (self.embedding_scale != 1.0, "scaled embeddings"),
            (self.residual_scale != 1.0, "scaled residuals"),
            (self.logit_scale != 1.0, "scaled logits"),
        ];
        features.iter().find(|(has, _)| *has).map(|(_, name)| *name)
    }

    /// Checks the values, given the decoder's number of layers and head width.
    pub(crate) fn check(&self, layers: usize, head_dim: usize) -> Result<(), String> {
        let positive = |value: f32| value.is_finite() && value > 0.0;
        if let Some(rotary) = self.rotary_dim.filter(|&dim| dim == 0 || dim > head_dim || dim % 2 != 0) {
            return Err(format!("{rotary} rotated values of a head: expected an even number from 2 to {head_dim}"));
        }
        if !self.layers.is_empty() && self.layers.len() != layers {
            return Err(format!("the attention of {} layers, there are {layers}", self.layers.len()));
        }
        if self.layers.iter().any(|layer| layer.window == Some(0)) {
            return Err("a sliding window of 0 tokens".to_owned());
        }
        if self.layers.iter().any(|layer| layer.rotary == LayerRotary::Local) && self.local_rope_base.is_none() {
            return Err("no rope base for layers with local attention".to_owned());
        }
        if let Some(base) = self.local_rope_base.filter(|base| !(base.is_finite() && *base > 1.0)) {
            return Err(format!("local rope base {base} is not a finite number above 1"));
        }
        if self.residual_scale != 1.0 && self.norms != NormPlacement::Before {
            return Err("scaled residuals with norms after a block".to_owned());
        }
        if let Some(experts) = &self.experts {
            experts.check(layers)?;
            if self.norms != NormPlacement::Before || self.residual_scale != 1.0 {
                return Err("experts with norms after a block or scaled residuals".to_owned());
            }
        }
        let numbers = [
            ("attention scale", self.attention_scale.unwrap_or(1.0)),
            ("limit of scores", self.score_cap.unwrap_or(1.0)),
            ("limit of logits", self.logit_cap.unwrap_or(1.0)),
            ("embedding scale", self.embedding_scale),
            ("residual scale", self.residual_scale),
            ("logit scale", self.logit_scale),
        ];
        match numbers.iter().find(|(_, value)| !positive(*value)) {
            Some((name, value)) => Err(format!("{name} {value} is not a finite number above 0")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_extends_nothing_and_every_feature_has_a_name() {
        let plain = Architecture { qkv_bias: true, qk_norm: QkNorm::Head, ..Architecture::default() };
        assert_eq!(plain.extension(), None);
        let window = LayerAttention { window: Some(4), ..LayerAttention::default() };
        let free = LayerAttention { rotary: LayerRotary::None, ..LayerAttention::default() };
        let experts =
            Experts { count: 4, per_token: 2, width: 8, normalized: true, shared: None, dense_layers: Vec::new() };
        for (changed, word) in [
            (Architecture { norms: NormPlacement::After, ..Architecture::default() }, "norms"),
            (Architecture { qk_norm: QkNorm::Whole, ..Architecture::default() }, "query heads"),
            (Architecture { activation: Activation::GeluTanh, ..Architecture::default() }, "GELU"),
            (Architecture { experts: Some(experts), ..Architecture::default() }, "experts"),
            (Architecture { rotary_dim: Some(8), ..Architecture::default() }, "rotation"),
            (Architecture { layers: vec![window], ..Architecture::default() }, "sliding-window"),
            (Architecture { layers: vec![free], ..Architecture::default() }, "rotation"),
            (Architecture { attention_scale: Some(0.5), ..Architecture::default() }, "scale"),
            (Architecture { logit_cap: Some(30.0), ..Architecture::default() }, "soft limits"),
            (Architecture { embedding_scale: 8.0, ..Architecture::default() }, "embeddings"),
            (Architecture { residual_scale: 0.2, ..Architecture::default() }, "residuals"),
            (Architecture { logit_scale: 0.1, ..Architecture::default() }, "logits"),
        ] {
            let found = changed.extension().unwrap_or_default();
            assert!(found.contains(word), "{found:?}, expected {word}");
        }
    }

    #[test]
    fn numbers_that_no_model_has_are_refused() {
        let refused = |architecture: Architecture| architecture.check(2, 16).err().unwrap_or_default();
        assert_eq!(refused(Architecture::default()), "");
        assert!(refused(Architecture { rotary_dim: Some(18), ..Architecture::default() }).contains("18"));
        assert!(refused(Architecture { rotary_dim: Some(7), ..Architecture::default() }).contains("7"));
        let three = vec![LayerAttention::default(); 3];
        assert!(refused(Architecture { layers: three, ..Architecture::default() }).contains("3 layers"));
        let none = vec![LayerAttention { window: Some(0), ..LayerAttention::default() }; 2];
        assert!(refused(Architecture { layers: none, ..Architecture::default() }).contains("window of 0"));
        let local = vec![LayerAttention { rotary: LayerRotary::Local, ..LayerAttention::default() }; 2];
        assert!(refused(Architecture { layers: local, ..Architecture::default() }).contains("rope base"));
        assert!(refused(Architecture { residual_scale: f32::NAN, ..Architecture::default() }).contains("residual"));
        assert!(refused(Architecture { score_cap: Some(0.0), ..Architecture::default() }).contains("limit of scores"));
    }
}
