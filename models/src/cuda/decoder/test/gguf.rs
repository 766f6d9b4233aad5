//! Writes a checkpoint as a GGUF file like llama.cpp's tools do.

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::weights::Weights;

/// Tensor names outside and inside the layers, without `.weight`.
const MODEL: [(&str, &str); 2] = [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm")];
const LAYER: [(&str, &str); 9] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Writes a Llama with tied embeddings: matrices in `Q8_0`, vectors in `f32`.
pub(super) fn write(weights: &Weights, path: &Path) {
    let config = weights.config();
    let mut names: Vec<(String, String)> =
        MODEL.map(|(name, gguf)| (format!("{name}.weight"), format!("{gguf}.weight"))).to_vec();
    for layer in 0..config.layers {
        let name = |(name, gguf): (&str, &str)| {
            (format!("model.layers.{layer}.{name}.weight"), format!("blk.{layer}.{gguf}.weight"))
        };
        names.extend(LAYER.map(name));
    }
    let tensors: Vec<(&str, QTensor)> =
        names.iter().map(|(name, gguf)| (gguf.as_str(), tensor(weights, name))).collect();
    let number = |key: &str, value: usize| (format!("llama.{key}"), Value::U32(value as u32));
    let metadata = [
        ("general.architecture".to_owned(), Value::String("llama".to_owned())),
        number("embedding_length", config.hidden),
        number("block_count", config.layers),
        number("feed_forward_length", config.ffn),
        number("context_length", config.context),
        number("attention.head_count", config.heads),
        number("attention.head_count_kv", config.kv_heads),
        number("attention.key_length", config.head_dim),
        ("llama.attention.layer_norm_rms_epsilon".to_owned(), Value::F32(config.rms_eps)),
        ("llama.rope.freq_base".to_owned(), Value::F32(config.rope_base)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

fn tensor(weights: &Weights, name: &str) -> QTensor {
    let config = weights.config();
    let view = weights.tensor(name).unwrap();
    let mut values = view.to_f32().unwrap();
    for (part, heads) in [("q_proj", config.heads), ("k_proj", config.kv_heads)] {
        if name.contains(part) {
            values = interleave(&values, heads, config.hidden);
        }
    }
    let kind = if view.shape.len() == 1 { GgmlDType::F32 } else { GgmlDType::Q8_0 };
    QTensor::quantize(&Tensor::from_vec(values, view.shape.clone(), &Device::Cpu).unwrap(), kind).unwrap()
}

/// Row order of `convert_hf_to_gguf.py` for Llama, which alternates the halves of each head.
fn interleave(values: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let size = values.len() / width / heads;
    let rows = (0..heads).flat_map(|head| (0..size).map(move |at| head * size + at % 2 * (size / 2) + at / 2));
    rows.flat_map(|row| values[row * width..][..width].iter().copied()).collect()
}
