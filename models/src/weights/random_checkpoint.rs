//! Checkpoints of random numbers for comparisons and benchmarks, where only the arithmetic matters.

use std::fs;
use std::path::Path;

use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use safetensors::tensor::{Dtype, TensorView};

use crate::ModelError;
use crate::architecture::{DecoderConfig, QkNorm, RopeScaling};

/// Writes `config.json` and `model.safetensors` in `bf16` into the folder `dir`: uniform matrices with standard
/// deviation `1 / √columns`, embeddings with 1, biases with 0.1, and norms equal to one. Supports only shapes
/// without rotary scaling, and with either biases or norms per head, not both.
///
/// # Errors
/// [`ModelError::Io`] when a file cannot be written, [`ModelError::Input`] for an unsupported shape.
pub fn write_random(dir: &Path, config: &DecoderConfig, seed: u64) -> Result<(), ModelError> {
    write_random_with(dir, config, seed, |_, _, _| ())
}

/// Writes a checkpoint like [`write_random`] whose tensors `change` has changed, given by name, length of a row and
/// bytes.
///
/// # Errors
/// The same as for [`write_random`].
pub fn write_random_with(
    dir: &Path,
    config: &DecoderConfig,
    seed: u64,
    mut change: impl FnMut(&str, usize, &mut [u8]),
) -> Result<(), ModelError> {
    config.check()?;
    if config.rope_scaling != RopeScaling::None {
        return Err(ModelError::Input("random checkpoints do not support rotary scaling".to_owned()));
    }
    if let Some(feature) = config.architecture.extension() {
        return Err(ModelError::Input(format!("random checkpoints do not support {feature}")));
    }
    let kind = match (config.architecture.qkv_bias, config.architecture.qk_norm) {
        (false, QkNorm::None) => "llama",
        (true, QkNorm::None) => "qwen2",
        (false, _) => "qwen3",
        (true, _) => {
            return Err(ModelError::Input("random checkpoints support biases or norms per head, not both".to_owned()));
        }
    };
    let settings = serde_json::json!({
        "model_type": kind,
        "vocab_size": config.vocab, "hidden_size": config.hidden, "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
        "max_position_embeddings": config.context, "rms_norm_eps": config.rms_eps, "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tied_embeddings, "hidden_act": "silu",
    });
    let path = dir.join("config.json");
    fs::write(&path, settings.to_string()).map_err(ModelError::io("write", &path))?;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let tensors: Vec<_> = tensors(config)
        .into_iter()
        .map(|(name, shape)| {
            let mut bytes = values(&mut random, &name, &shape);
            change(&name, shape.last().copied().unwrap_or(1), &mut bytes);
            (name, shape, bytes)
        })
        .collect();
    let path = dir.join("model.safetensors");
    let corrupt =
        |error: safetensors::SafeTensorError| ModelError::Corrupt { path: path.clone(), reason: error.to_string() };
    let mut views = Vec::with_capacity(tensors.len());
    for (name, shape, bytes) in &tensors {
        views.push((name, TensorView::new(Dtype::BF16, shape.clone(), bytes).map_err(corrupt)?));
    }
    let bytes = safetensors::serialize(views, None).map_err(corrupt)?;
    fs::write(&path, bytes).map_err(ModelError::io("write", &path))
}

/// Names and shapes of all tensors.
fn tensors(config: &DecoderConfig) -> Vec<(String, Vec<usize>)> {
    let vocab = config.vocab;
    let hidden = config.hidden;
    let ffn = config.ffn;
    let q = config.q_width();
    let kv = config.kv_width();
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if !config.tied_embeddings {
        tensors.push(("lm_head.weight".to_owned(), vec![vocab, hidden]));
    }
    for layer in 0..config.layers {
        let mut add =
            |rest: &str, shape: &[usize]| tensors.push((format!("model.layers.{layer}.{rest}"), shape.to_vec()));
        add("input_layernorm.weight", &[hidden]);
        add("post_attention_layernorm.weight", &[hidden]);
        for (part, out) in [("q", q), ("k", kv), ("v", kv)] {
            add(&format!("self_attn.{part}_proj.weight"), &[out, hidden]);
            if config.architecture.qkv_bias {
                add(&format!("self_attn.{part}_proj.bias"), &[out]);
            }
        }
        if config.architecture.qk_norm != QkNorm::None {
            add("self_attn.q_norm.weight", &[config.head_dim]);
            add("self_attn.k_norm.weight", &[config.head_dim]);
        }
        add("self_attn.o_proj.weight", &[hidden, q]);
        add("mlp.gate_proj.weight", &[ffn, hidden]);
        add("mlp.up_proj.weight", &[ffn, hidden]);
        add("mlp.down_proj.weight", &[hidden, ffn]);
    }
    tensors
}

fn values(random: &mut ChaCha8Rng, name: &str, shape: &[usize]) -> Vec<u8> {
    let deviation = match name {
        _ if name.ends_with("norm.weight") => 0.0,
        _ if name.ends_with("bias") => 0.1,
        "model.embed_tokens.weight" => 1.0,
        _ => 1.0 / (shape.last().copied().unwrap_or(1) as f32).sqrt(),
    };
    // Uniform from −√3 to √3 times the deviation.
    let mut uniform = || (random.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0) * 3.0f32.sqrt() * deviation;
    let value = |_| bf16::from_f32(if deviation == 0.0 { 1.0 } else { uniform() }).to_le_bytes();
    (0..shape.iter().product::<usize>()).flat_map(value).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::architecture::Architecture;
    use crate::weights::Weights;

    #[test]
    fn what_is_written_opens_with_the_same_shape() {
        let config = DecoderConfig {
            vocab: 50,
            hidden: 32,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            ffn: 48,
            context: 64,
            rope_base: 1e4,
            rope_scaling: RopeScaling::None,
            rms_eps: 1e-5,
            tied_embeddings: false,
            architecture: Architecture { family: "qwen2", qkv_bias: true, ..Architecture::default() },
        };
        let dir = tempfile::tempdir().unwrap();
        write_random(dir.path(), &config, 1).unwrap();
        let weights = Weights::open(dir.path()).unwrap();
        assert_eq!(weights.config(), &config);
        let matrix = weights.tensor("model.layers.1.mlp.down_proj.weight").unwrap().to_f32().unwrap();
        let square = matrix.iter().map(|value| value * value).sum::<f32>() / matrix.len() as f32;
        assert!((square * 48.0 - 1.0).abs() < 0.1, "{square}");
        assert!(weights.tensor("model.norm.weight").unwrap().to_f32().unwrap().iter().all(|value| *value == 1.0));
    }
}
