//! Mapping of Hugging Face tensor names to ggml names (`gguf-py/gguf/tensor_mapping.py`).

use crate::architecture::NormPlacement;

/// Names outside the layers.
const MODEL: [(&str, &str); 6] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
    ("rope_freqs.weight", "rope_freqs.weight"),
    ("rope_factors_short.weight", "rope_factors_short.weight"),
    ("rope_factors_long.weight", "rope_factors_long.weight"),
];

/// Names inside a layer, without `.weight` or `.bias`.
const LAYER: [(&str, &str); 23] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
];

/// Name of a tensor in ggml, in a model with norms at `norms`. `None` for names that no supported model has.
pub(super) fn gguf(canonical: &str, norms: NormPlacement) -> Option<String> {
    if let Some((_, name)) = MODEL.iter().find(|(hf, _)| *hf == canonical) {
        return Some((*name).to_owned());
    }
    let (layer, part) = canonical.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, end) = part.rsplit_once('.').filter(|(_, end)| matches!(*end, "weight" | "bias"))?;
    let (_, name) = LAYER.iter().find(|(hf, _)| *hf == module)?;
    // Llama's "post attention" norm precedes the feed-forward block; in other families it follows attention.
    let after = module == "post_attention_layernorm" && norms != NormPlacement::Before;
    let name = if after { "post_attention_norm" } else { name };
    Some(format!("blk.{}.{name}.{end}", layer.parse::<u32>().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_mapped() {
        let gguf = |name: &str| gguf(name, NormPlacement::Before);
        assert_eq!(gguf("lm_head.weight").as_deref(), Some("output.weight"));
        assert_eq!(gguf("model.layers.12.self_attn.q_proj.bias").as_deref(), Some("blk.12.attn_q.bias"));
        assert_eq!(gguf("model.layers.3.mlp.down_proj.weight").as_deref(), Some("blk.3.ffn_down.weight"));
        assert_eq!(gguf("model.layers.3.mlp.gate.weight").as_deref(), Some("blk.3.ffn_gate_inp.weight"));
        let experts = "model.layers.3.mlp.experts.gate_proj.weight";
        assert_eq!(gguf(experts).as_deref(), Some("blk.3.ffn_gate_exps.weight"));
        assert_eq!(gguf("model.layers.x.mlp.down_proj.weight"), None);
        assert_eq!(gguf("model.layers.3.mlp.down_proj"), None);
        let second = "model.layers.1.post_attention_layernorm.weight";
        assert_eq!(gguf(second).as_deref(), Some("blk.1.ffn_norm.weight"));
        assert_eq!(super::gguf(second, NormPlacement::After).as_deref(), Some("blk.1.post_attention_norm.weight"));
    }
}
