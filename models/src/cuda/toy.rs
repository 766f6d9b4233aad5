//! Decoder configurations small enough for the emulator, one per model family.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use half::bf16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::architecture::{Architecture, QkNorm};
use crate::cuda::kernel::fp8;
use crate::decoder::{DecoderConfig, RopeScaling};
use crate::weights::{Weights, write_random};

/// Llama: tied embeddings, grouped-query attention.
pub(super) fn llama() -> DecoderConfig {
    DecoderConfig {
        vocab: 61,
        hidden: 128,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn: 160,
        context: 256,
        rope_base: 1e4,
        rope_scaling: RopeScaling::None,
        rms_eps: 1e-5,
        tied_embeddings: true,
        architecture: Architecture::default(),
    }
}

/// Qwen2: biases, an untied output projection, heads of width 80, and three query heads per key/value head.
pub(super) fn qwen2() -> DecoderConfig {
    let architecture = Architecture { family: "qwen2", qkv_bias: true, ..Architecture::default() };
    DecoderConfig { architecture, tied_embeddings: false, head_dim: 80, heads: 3, kv_heads: 1, layers: 3, ..llama() }
}

/// Qwen3: RMS norm per head.
pub(super) fn qwen3() -> DecoderConfig {
    let architecture = Architecture { family: "qwen3", qk_norm: QkNorm::Head, ..Architecture::default() };
    DecoderConfig { architecture, ..llama() }
}

/// Writes a random checkpoint and opens it.
pub(super) fn open(config: &DecoderConfig) -> Weights {
    changed(config, |_, _, _| ())
}

/// Writes a random checkpoint whose layers' matrices are exact in `e4m3`, and opens it.
pub(super) fn open_fp8(config: &DecoderConfig) -> Weights {
    changed(config, fp8::round_layer_matrix)
}

/// Writes a random checkpoint, changes its tensors, given by name, length of a row and bytes, and opens it.
pub(super) fn changed(config: &DecoderConfig, change: fn(&str, usize, &mut [u8])) -> Weights {
    let dir = tempfile::tempdir().unwrap();
    write_random(dir.path(), config, 3).unwrap();
    vary(&dir.path().join("model.safetensors"), change);
    // The files stay mapped after the directory is deleted.
    Weights::open(dir.path()).unwrap()
}

/// Gives each norm its own weights: in a random checkpoint all of them are 1, so a mix-up of two norms would go
/// unnoticed. Then applies `change`.
fn vary(path: &Path, change: fn(&str, usize, &mut [u8])) {
    let bytes = fs::read(path).unwrap();
    let mut tensors = Vec::new();
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().iter() {
        let mut values = tensor.data().to_vec();
        if name.ends_with("norm.weight") {
            let salt: usize = name.bytes().map(usize::from).sum();
            for (index, value) in values.chunks_exact_mut(2).enumerate() {
                let weight = 0.5 + ((index + salt) * 37 % 64) as f32 / 64.0;
                value.copy_from_slice(&bf16::from_f32(weight).to_le_bytes());
            }
        }
        change(name, tensor.shape().last().copied().unwrap_or(1), &mut values);
        tensors.push((name.to_owned(), tensor.shape().to_vec(), values));
    }
    let view = |shape: &[usize], values| TensorView::new(Dtype::BF16, shape.to_vec(), values).unwrap();
    let views = tensors.iter().map(|(name, shape, values)| (name, view(shape, values)));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Relative distance ‖found − wanted‖ / ‖wanted‖.
pub(super) fn distance(found: &[f32], wanted: &[f32]) -> f64 {
    assert_eq!(found.len(), wanted.len());
    let off: f64 = found.iter().zip(wanted).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let norm: f64 = wanted.iter().map(|x| f64::from(*x).powi(2)).sum();
    (off / norm).sqrt()
}
