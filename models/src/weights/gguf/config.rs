//! Decoder configuration from GGUF metadata.

use super::Gguf;
use crate::ModelError;
use crate::architecture::{Architecture, DecoderConfig, Family, QkNorm, RopeScaling};

/// Base of the rotary embedding of a file that states none, in every architecture of llama.cpp.
const ROPE_BASE: f32 = 10_000.0;

/// Accessor of the keys below the architecture's name.
pub(super) struct MetadataKeys<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) architecture: &'a str,
}

pub(super) fn read(gguf: &Gguf) -> Result<DecoderConfig, ModelError> {
    let architecture = gguf.architecture()?;
    let keys = MetadataKeys { gguf, architecture };
    let family = keys.family()?;
    let hidden = keys.size("embedding_length")?;
    let heads = keys.size("attention.head_count")?;
    let head_dim = match keys.optional_size("attention.key_length")? {
        Some(size) => size,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    if keys.number("attention.value_length").is_some_and(|size| size != head_dim as u64) {
        return Err(gguf.unsupported("value heads of another size than key heads"));
    }
    if let Some(name) = fused_attention(gguf).filter(|_| !family.fused) {
        let what =
            format!("queries, keys and values in one tensor ({name}): convert the checkpoint without --fuse-qkv");
        return Err(gguf.unsupported(what));
    }
    if let Some(name) = other_bias(gguf) {
        return Err(gguf.unsupported(format!("tensor {name}: only queries, keys and values may have a bias")));
    }
    let embedding = gguf.stored("model.embed_tokens.weight");
    let vocab = embedding.map(|tensor| tensor.shape[0]).ok_or_else(|| gguf.corrupt("token_embd.weight is missing"))?;
    let layers = keys.size("block_count")?;
    let context = keys.size("context_length")?;
    let (rope_scaling, context) = keys.rope_scaling(family, context)?;
    let config = DecoderConfig {
        vocab,
        hidden,
        layers,
        heads,
        kv_heads: keys.optional_size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        ffn: keys.size("feed_forward_length")?,
        context,
        rope_base: keys.float("rope.freq_base").unwrap_or(ROPE_BASE),
        rope_scaling,
        rms_eps: keys.needed_float("attention.layer_norm_rms_epsilon")?,
        tied_embeddings: !gguf.has("lm_head.weight"),
        architecture: keys.decoder_architecture(family, [hidden, heads, head_dim, layers, context])?,
    };
    config.check().map_err(|error| gguf.corrupt(error.to_string()))?;
    Ok(config)
}

/// First weight or bias of a projection to queries, keys and values together, if any.
fn fused_attention(gguf: &Gguf) -> Option<&String> {
    gguf.header.tensors.keys().filter(|name| name.contains(".attn_qkv.")).min()
}

/// First bias that no supported decoder adds, if any: of the output or feed-forward projections, or of a norm.
fn other_bias(gguf: &Gguf) -> Option<&String> {
    let added = |name: &str| ["attn_q.bias", "attn_k.bias", "attn_v.bias"].iter().any(|bias| name.ends_with(bias));
    gguf.header.tensors.keys().filter(|name| name.ends_with(".bias") && !added(name)).min()
}

impl MetadataKeys<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.gguf.number(&self.key(name))
    }

    pub(super) fn float(&self, name: &str) -> Option<f32> {
        self.gguf.float(&self.key(name)).map(|value| value as f32)
    }

    fn needed_float(&self, name: &str) -> Result<f32, ModelError> {
        self.float(name).ok_or_else(|| self.gguf.corrupt(format!("{} is missing", self.key(name))))
    }

    pub(super) fn size(&self, name: &str) -> Result<usize, ModelError> {
        self.optional_size(name)?.ok_or_else(|| self.gguf.corrupt(format!("{} is missing", self.key(name))))
    }

    /// Size that may be missing. Some files state it for each layer; no supported decoder has layers of different sizes.
    fn optional_size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = self.key(name);
        let Some(value) = self.gguf.header.metadata.get(&key) else { return Ok(None) };
        let wrong = || self.gguf.corrupt(format!("{key} is not a non-negative integer"));
        let size = match self.gguf.numbers(&key) {
            Some(mut layers) => {
                let first = layers.next().flatten().ok_or_else(wrong)?;
                if layers.any(|size| size != Some(first)) {
                    return Err(self.gguf.unsupported(format!("{key} that differs between layers")));
                }
                first
            }
            None => value.unsigned().ok_or_else(wrong)?,
        };
        // A number beyond `usize` saturates; the decoder's own check then refuses it as too large.
        Ok(Some(usize::try_from(size).unwrap_or(usize::MAX)))
    }

    /// Features of the decoder, for sizes [hidden, heads, head_dim, layers, context].
    fn decoder_architecture(&self, family: &Family, sizes: [usize; 5]) -> Result<Architecture, ModelError> {
        let [hidden, heads, head_dim, count, context] = sizes;
        let gguf = self.gguf;
        let rotated = self.number("rope.dimension_count").filter(|&size| size != head_dim as u64);
        if rotated.is_some() && !family.partial_rotary {
            return Err(gguf.unsupported("rotation of a part of each head"));
        }
        let gemma2 = family.model_type == "gemma2";
        let given = |key: &str| if family.multipliers { self.float(key).filter(|&value| value > 0.0) } else { None };
        let head_norm = if gguf.has("model.layers.0.self_attn.q_norm.weight") { QkNorm::Head } else { QkNorm::None };
        // llama.cpp recognizes the largest Gemma 2 and 3 by their number of layers. Their scale does not follow from
        // the width of a head.
        let largest =
            matches!((family.model_type, self.number("block_count")), ("gemma2", Some(46)) | ("gemma3_text", Some(62)));
        let attention_scale = match family.gemma && largest && heads > 0 {
            true => Some(1.0 / (hidden as f32 / heads as f32).sqrt()),
            false => given("attention.scale"),
        };
        Ok(Architecture {
            family: family.model_type,
            norms: family.norms,
            qkv_bias: gguf.has("model.layers.0.self_attn.q_proj.bias"),
            qk_norm: family.qk_norm.unwrap_or(head_norm),
            activation: family.activation,
            experts: self.experts(family, count)?,
            rotary_dim: rotated.map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
            local_rope_base: family.local_rope.then(|| self.float("rope.freq_base_swa").unwrap_or(10_000.0)),
            layers: self.layers(family, count, context)?,
            attention_scale,
            // Early files of Gemma 2 leave its limits out as well.
            score_cap: self.float("attn_logit_softcapping").filter(|_| family.gemma).or(gemma2.then_some(50.0)),
            logit_cap: self.float("final_logit_softcapping").filter(|_| family.gemma).or(gemma2.then_some(30.0)),
            embedding_scale: match family.gemma {
                true => (hidden as f32).sqrt(),
                false => given("embedding_scale").unwrap_or(1.0),
            },
            residual_scale: given("residual_scale").unwrap_or(1.0),
            logit_scale: given("logit_scale").map_or(1.0, |scale| 1.0 / scale),
        })
    }

    /// Scaling of the rotary frequencies, and the context for which it is meant.
    fn rope_scaling(&self, family: &Family, context: usize) -> Result<(RopeScaling, usize), ModelError> {
        let short = "rope_factors_short.weight";
        if !(family.partial_rotary && self.gguf.has(short)) {
            return Ok((self.plain_rope_scaling()?, context));
        }
        let factors = self.gguf.tensor(short)?.to_f32()?;
        // Factors for long contexts would change the keys of earlier tokens in the cache.
        let context = context.min(self.size("rope.scaling.original_context_length")?);
        let attention_factor = self.float("rope.scaling.attn_factor").unwrap_or(1.0);
        Ok((RopeScaling::Long { factors, attention_factor }, context))
    }

    /// Scaling of a file that names no type, which llama.cpp reads as linear: by the key of today or that of 2023.
    fn old_rope_scaling(&self) -> RopeScaling {
        let factor = self.float("rope.scaling.factor").or_else(|| self.float("rope.scale_linear"));
        match factor.filter(|factor| *factor != 0.0 && *factor != 1.0) {
            Some(factor) => RopeScaling::Linear { factor },
            None => RopeScaling::None,
        }
    }

    fn plain_rope_scaling(&self) -> Result<RopeScaling, ModelError> {
        // Llama 3 files store the result of the scaling rule as a tensor.
        if self.gguf.has("rope_freqs.weight") {
            return Ok(RopeScaling::Factors(self.gguf.tensor("rope_freqs.weight")?.to_f32()?));
        }
        let factor = || self.needed_float("rope.scaling.factor");
        match self.gguf.text(&self.key("rope.scaling.type")) {
            Some("none") => Ok(RopeScaling::None),
            None => Ok(self.old_rope_scaling()),
            Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
            Some("yarn") => Ok(RopeScaling::Yarn {
                factor: factor()?,
                original_context: self.size("rope.scaling.original_context_length")?,
                beta_fast: self.float("rope.scaling.yarn_beta_fast").unwrap_or(32.0),
                beta_slow: self.float("rope.scaling.yarn_beta_slow").unwrap_or(1.0),
                attention_factor: attention_factor(self.float("rope.scaling.attn_factor"), factor()?),
            }),
            Some(other) => Err(self.gguf.unsupported(format!("rope scaling {other}"))),
        }
    }
}

/// Factor on cosine and sine. llama.cpp multiplies a GGUF's `attn_factor` by YaRN's own `0.1 · ln(factor) + 1`
/// (`rope_yarn` in `ggml`). `None` leaves YaRN's own factor.
fn attention_factor(stored: Option<f32>, factor: f32) -> Option<f32> {
    stored.filter(|&stored| stored != 1.0).map(|stored| stored * (0.1 * factor.ln() + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_attention_factor_multiplies_that_of_yarn() {
        assert_eq!(attention_factor(None, 4.0), None);
        assert_eq!(attention_factor(Some(1.0), 4.0), None);
        let stored = attention_factor(Some(0.5), 4.0).unwrap_or_default();
        assert!((stored - 0.5 * 1.138_629_4).abs() < 1e-6, "{stored}");
    }
}
