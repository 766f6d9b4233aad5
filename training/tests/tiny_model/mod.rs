//! Writes the smallest base model that the trainer accepts.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

const VOCAB: usize = 48;
const HIDDEN: usize = 64;
const FFN: usize = 96;

/// Writes a random Llama with a vocabulary of words into `dir`.
pub fn model(dir: &Path) {
    let config = json!({
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": true,
        "hidden_act": "silu", "eos_token_id": 1
    });
    let vocab: serde_json::Map<_, _> = (0..VOCAB).map(|id| (format!("w{id}"), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    });
    let shapes = [
        ("model.embed_tokens", vec![VOCAB, HIDDEN]),
        ("model.norm", vec![HIDDEN]),
        ("model.layers.0.input_layernorm", vec![HIDDEN]),
        ("model.layers.0.post_attention_layernorm", vec![HIDDEN]),
        ("model.layers.0.self_attn.q_proj", vec![64, HIDDEN]),
        ("model.layers.0.self_attn.k_proj", vec![32, HIDDEN]),
        ("model.layers.0.self_attn.v_proj", vec![32, HIDDEN]),
        ("model.layers.0.self_attn.o_proj", vec![HIDDEN, 64]),
        ("model.layers.0.mlp.gate_proj", vec![FFN, HIDDEN]),
        ("model.layers.0.mlp.up_proj", vec![FFN, HIDDEN]),
        ("model.layers.0.mlp.down_proj", vec![HIDDEN, FFN]),
    ];
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut bytes = |shape: &[usize]| -> Vec<u8> {
        (0..shape.iter().product()).flat_map(|_| rng.random_range(-0.3f32..0.3).to_le_bytes()).collect()
    };
    let tensors: Vec<_> = shapes.iter().map(|(name, shape)| (format!("{name}.weight"), shape, bytes(shape))).collect();
    let views =
        tensors.iter().map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, (*shape).clone(), data).unwrap()));
    fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}
