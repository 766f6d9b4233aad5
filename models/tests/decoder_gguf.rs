//! Checkpoints of Qwen2 and Qwen3 written as GGUF files, with the logits of `transformers`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;
mod synthetic;

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use fixture::{Tensors, decoder, parity, path};
use synthetic::gguf_name;
use waymark_models::weights::Weights;

/// Writes the checkpoint `name` as `convert_hf_to_gguf.py --outtype f32` does.
fn write(name: &str, to: &Path) {
    let weights = Weights::open(&path(name)).unwrap();
    let config = weights.config();
    let mut tensors = Vec::new();
    for tensor in Tensors::read(&path(name).join("model.safetensors")).names() {
        let view = weights.tensor(&tensor).unwrap();
        let values = Tensor::from_vec(view.to_f32().unwrap(), view.shape.clone(), &Device::Cpu).unwrap();
        let gguf =
            gguf_name(&tensor).replace("self_attn.q_norm", "attn_q_norm").replace("self_attn.k_norm", "attn_k_norm");
        tensors.push((gguf, QTensor::quantize(&values, GgmlDType::F32).unwrap()));
    }
    let number = |key: &str, value: usize| (format!("{name}.{key}"), Value::U32(value as u32));
    let metadata = [
        ("general.architecture".to_owned(), Value::String(name.to_owned())),
        number("embedding_length", config.hidden),
        number("block_count", config.layers),
        number("feed_forward_length", config.ffn),
        number("context_length", config.context),
        number("attention.head_count", config.heads),
        number("attention.head_count_kv", config.kv_heads),
        number("attention.key_length", config.head_dim),
        number("attention.value_length", config.head_dim),
        (format!("{name}.attention.layer_norm_rms_epsilon"), Value::F32(config.rms_eps)),
        (format!("{name}.rope.freq_base"), Value::F32(config.rope_base)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut File::create(to).unwrap(), &metadata, &tensors).unwrap();
}

fn agrees(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    write(name, &file);
    assert_eq!(Weights::open(&file).unwrap().config(), Weights::open(&path(name)).unwrap().config());
    let difference = parity(&mut decoder(&file), &path(name).join("expected.safetensors"), None);
    println!("{name}: max abs difference {difference:.2e}");
    assert!(difference < 1e-3, "{name}: {difference}");
}

#[test]
fn qwen2_as_gguf_agrees_with_transformers() {
    agrees("qwen2");
}

#[test]
fn qwen3_as_gguf_agrees_with_transformers() {
    agrees("qwen3");
}
