//! Features of a decoder from `config.json`.

use super::Safetensors;
use super::config::ConfigFile;
use crate::architecture::{Architecture, Family, LayerAttention, LayerRotary, QkNorm, WindowPattern, simplest};

impl ConfigFile {
    /// Describes the computation of the decoder over a context.
    pub(super) fn architecture(
        &self,
        family: &Family,
        tensors: &Safetensors,
        context: usize,
    ) -> Result<Architecture, String> {
        let fields = &self.features;
        let given = |value: Option<f32>| value.filter(|_| family.multipliers);
        let head_norm = match tensors.has("model.layers.0.self_attn.q_norm.weight") {
            true => QkNorm::Head,
            false => QkNorm::None,
        };
        let head_dim = self.head_dim(family);
        let scalar = fields.query_pre_attn_scalar.filter(|&scalar| family.gemma && scalar != head_dim as f32);
        Ok(Architecture {
            family: family.model_type,
            norms: family.norms,
            qkv_bias: tensors.has("model.layers.0.self_attn.q_proj.bias"),
            qk_norm: family.qk_norm.unwrap_or(head_norm),
            activation: family.activation,
            experts: fields.experts.experts(family, tensors, [self.num_hidden_layers, self.intermediate_size])?,
            rotary_dim: self.rotated_share().map(|share| (head_dim as f32 * share) as usize),
            local_rope_base: if family.local_rope { Some(self.local_rope_base()?) } else { None },
            layers: self.layers(family, context)?,
            // Granite's default scale is 1 instead of `1 / √head_dim` (`configuration_granite.py`).
            attention_scale: match family.multipliers {
                true => Some(fields.attention_multiplier.unwrap_or(1.0)),
                false => scalar.map(|scalar| 1.0 / scalar.sqrt()),
            },
            score_cap: fields.attn_logit_softcapping.filter(|_| family.gemma),
            logit_cap: fields.final_logit_softcapping.filter(|_| family.gemma),
            embedding_scale: match family.gemma {
                true => (self.hidden_size as f32).sqrt(),
                false => given(fields.embedding_multiplier).unwrap_or(1.0),
            },
            residual_scale: given(fields.residual_multiplier).unwrap_or(1.0),
            logit_scale: given(fields.logits_scaling).map_or(1.0, |scaling| 1.0 / scaling),
        })
    }

    /// Attention of each layer. Empty if all layers have the default. A window that covers the context counts as none.
    fn layers(&self, family: &Family, context: usize) -> Result<Vec<LayerAttention>, String> {
        let fields = &self.features;
        let count = self.num_hidden_layers;
        // A damaged number of layers is refused later, by name.
        if count > 1 << 16 {
            return Ok(Vec::new());
        }
        let window = fields.sliding_window.filter(|&window| window < context);
        let mut layers = family.layers(count, window);
        layers.resize(count, LayerAttention::default());
        if let Some(every) = fields.no_rope_layer_interval.filter(|&every| family.unrotated.is_some() && every > 0) {
            for (index, layer) in layers.iter_mut().enumerate() {
                *layer = family.layer(layer.window, false, (index + 1).is_multiple_of(every));
            }
        }
        if let Some(rotated) = fields.no_rope_layers.as_ref().filter(|_| family.unrotated.is_some()) {
            self.expect(rotated.len(), "no_rope_layers")?;
            for (layer, rotated) in layers.iter_mut().zip(rotated) {
                *layer = family.layer(layer.window, false, *rotated == 0);
            }
        }
        let every = fields.sliding_window_pattern.filter(|&every| family.local_rope && every > 0);
        for (index, layer) in layers.iter_mut().enumerate().filter(|_| every.is_some()) {
            let local = every.is_some_and(|every| !(index + 1).is_multiple_of(every));
            *layer = family.layer(window.filter(|_| local), local, false);
        }
        if let Some(kinds) = &fields.layer_types {
            self.expect(kinds.len(), "layer_types")?;
            for (layer, kind) in layers.iter_mut().zip(kinds) {
                let local = match (kind.as_str(), family.windows) {
                    ("full_attention", _) => false,
                    ("sliding_attention", WindowPattern::All | WindowPattern::GlobalEvery(_)) => true,
                    _ => return Err(format!("layer_types {kind} in {}", family.model_type)),
                };
                let unrotated = layer.rotary == LayerRotary::None;
                *layer = family.layer(window.filter(|_| local), local, unrotated);
            }
        }
        Ok(simplest(layers))
    }

    /// Checks that a list has an entry for each layer.
    fn expect(&self, len: usize, list: &str) -> Result<(), String> {
        match len == self.num_hidden_layers {
            true => Ok(()),
            false => Err(format!("{list} of {len} entries for {} layers", self.num_hidden_layers)),
        }
    }
}
