//! Small random checkpoints in real file formats.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The sizes of the little decoder: hidden 64, two layers, four heads of 16, two KV heads, ffn 96, vocabulary 40.
pub const HIDDEN: usize = 64;
pub const FFN: usize = 96;
pub const VOCAB: usize = 40;
pub const LAYERS: usize = 2;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD: usize = 16;

/// Random values of a tensor, the same for the same name.
pub fn values(name: &str, len: usize) -> Vec<f32> {
    let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Hugging Face names and shapes, in order.
pub fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut list = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: &[usize]| list.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        add("input_layernorm.weight", &[HIDDEN]);
        add("post_attention_layernorm.weight", &[HIDDEN]);
        add("self_attn.q_proj.weight", &[HEADS * HEAD, HIDDEN]);
        add("self_attn.k_proj.weight", &[KV_HEADS * HEAD, HIDDEN]);
        add("self_attn.v_proj.weight", &[KV_HEADS * HEAD, HIDDEN]);
        add("self_attn.o_proj.weight", &[HIDDEN, HEADS * HEAD]);
        add("mlp.gate_proj.weight", &[FFN, HIDDEN]);
        add("mlp.up_proj.weight", &[FFN, HIDDEN]);
        add("mlp.down_proj.weight", &[HIDDEN, FFN]);
    }
    list
}

/// Name in ggml of a tensor from the list above.
pub fn gguf_name(name: &str) -> String {
    let pairs = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    pairs.iter().fold(name.to_owned(), |name, (hf, gguf)| name.replace(hf, gguf))
}

/// Row order that `convert_hf_to_gguf.py` writes for Llama: the halves of each head interleaved.
pub fn interleave(values: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let size = values.len() / width / heads;
    let row = |row: usize| values[row * width..(row + 1) * width].iter().copied();
    (0..heads)
        .flat_map(|head| (0..size).map(move |at| head * size + at % 2 * (size / 2) + at / 2))
        .flat_map(row)
        .collect()
}

/// Metadata of the little decoder.
pub fn metadata(architecture: &str) -> Vec<(String, Value)> {
    let mut list = vec![("general.architecture".to_owned(), Value::String(architecture.to_owned()))];
    let mut number = |key: &str, value: usize| list.push((format!("{architecture}.{key}"), Value::U32(value as u32)));
    number("embedding_length", HIDDEN);
    number("block_count", LAYERS);
    number("feed_forward_length", FFN);
    number("context_length", 256);
    number("attention.head_count", HEADS);
    number("attention.head_count_kv", KV_HEADS);
    list.push((format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5)));
    list.push((format!("{architecture}.rope.freq_base"), Value::F32(20_000.0)));
    list
}

/// Writes the little decoder as GGUF, with matrices in `kind` and `extra` metadata.
pub fn write_gguf(path: &Path, architecture: &str, kind: GgmlDType, extra: Vec<(String, Value)>) {
    let mut written = Vec::new();
    for (name, shape) in tensors() {
        let mut data = values(&name, shape.iter().product());
        if architecture == "llama" && name.contains("q_proj") {
            data = interleave(&data, HEADS, HIDDEN);
        } else if architecture == "llama" && name.contains("k_proj") {
            data = interleave(&data, KV_HEADS, HIDDEN);
        }
        let kind = if shape.len() == 1 { GgmlDType::F32 } else { kind };
        let tensor = Tensor::from_vec(data, shape, &Device::Cpu).unwrap();
        written.push((gguf_name(&name), QTensor::quantize(&tensor, kind).unwrap()));
    }
    let mut metadata = metadata(architecture);
    metadata.extend(extra);
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = written.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

/// Writes the little decoder as a Hugging Face directory, in one file or in two with an index.
pub fn write_hf(folder: &Path, model_type: &str, sharded: bool) {
    let config = serde_json::json!({
        "model_type": model_type, "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 20_000.0, "tie_word_embeddings": true,
        "hidden_act": "silu"
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let all: Vec<(String, Tensor)> = tensors()
        .into_iter()
        .map(|(name, shape)| {
            let data = values(&name, shape.iter().product());
            (name, Tensor::from_vec(data, shape, &Device::Cpu).unwrap())
        })
        .collect();
    let save = |list: &[(String, Tensor)], file: &str| {
        candle_core::safetensors::save(&list.iter().cloned().collect::<HashMap<_, _>>(), folder.join(file)).unwrap();
    };
    if !sharded {
        return save(&all, "model.safetensors");
    }
    let (first, second) = all.split_at(all.len() / 2);
    let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    save(first, files[0]);
    save(second, files[1]);
    let place = |(list, file): (&[(String, Tensor)], &str)| {
        list.iter().map(|(name, _)| (name.clone(), file.to_owned().into())).collect::<Vec<_>>()
    };
    let weight_map: serde_json::Map<_, _> =
        [(first, files[0]), (second, files[1])].into_iter().flat_map(place).collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": weight_map });
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}
