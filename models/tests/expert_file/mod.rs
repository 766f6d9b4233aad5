//! Random GGUF files of Qwen3-MoE, with experts in any kind of quantization.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Sizes that K-quants can hold: rows of whole super-blocks.
pub const HIDDEN: usize = 256;
pub const WIDTH: usize = 512;
pub const VOCAB: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 64;

/// Contents of a file.
#[derive(Debug, Clone, Copy)]
pub struct ExpertFile {
    /// Kind of all matrices but the embedding and the routers.
    pub kind: GgmlDType,
    /// If `true`, the rounded values are stored in `f32`.
    pub dequantized: bool,
    pub layers: usize,
    pub count: usize,
    /// Inner width of an expert.
    pub width: usize,
    /// Number of experts in the stacked tensors, unless it is `count`.
    pub stacked: Option<usize>,
    /// Name of a tensor that is left out.
    pub without: &'static str,
    /// Name of a tensor that no pass reads. Empty for none.
    pub also: &'static str,
}

impl ExpertFile {
    /// File with one layer of four experts in `kind`.
    pub fn new(kind: GgmlDType) -> Self {
        Self { kind, dequantized: false, layers: 1, count: 4, width: WIDTH, stacked: None, without: "", also: "" }
    }

    /// Writes the file, with `extra` metadata.
    pub fn write(self, path: &Path, extra: &[(&str, Value)]) {
        let tensors = self.tensors();
        let written: Vec<(&str, QTensor)> =
            tensors.iter().map(|(name, shape)| (name.as_str(), self.tensor(name, shape))).collect();
        let number = |key: &str, value: usize| (format!("qwen3moe.{key}"), Value::U32(value as u32));
        let mut metadata = vec![
            ("general.architecture".to_owned(), Value::String("qwen3moe".to_owned())),
            number("embedding_length", HIDDEN),
            number("block_count", self.layers),
            number("feed_forward_length", 3 * self.width),
            number("expert_feed_forward_length", self.width),
            number("expert_count", self.count),
            number("expert_used_count", 2),
            number("context_length", 256),
            number("attention.head_count", HEADS),
            number("attention.head_count_kv", KV_HEADS),
            number("attention.key_length", HEAD),
            ("qwen3moe.attention.layer_norm_rms_epsilon".to_owned(), Value::F32(1e-6)),
            ("qwen3moe.rope.freq_base".to_owned(), Value::F32(10_000.0)),
        ];
        metadata.retain(|(key, _)| extra.iter().all(|(other, _)| key != other));
        metadata.extend(extra.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let tensors: Vec<_> = written.iter().map(|(name, tensor)| (*name, tensor)).collect();
        gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
    }

    /// Names and shapes.
    fn tensors(self) -> Vec<(String, Vec<usize>)> {
        let mut list = vec![
            ("token_embd.weight".to_owned(), vec![VOCAB, HIDDEN]),
            ("output.weight".to_owned(), vec![VOCAB, HIDDEN]),
            ("output_norm.weight".to_owned(), vec![HIDDEN]),
        ];
        let count = self.stacked.unwrap_or(self.count);
        for layer in 0..self.layers {
            for (name, shape) in [
                ("attn_norm", vec![HIDDEN]),
                ("ffn_norm", vec![HIDDEN]),
                ("attn_q", vec![HEADS * HEAD, HIDDEN]),
                ("attn_k", vec![KV_HEADS * HEAD, HIDDEN]),
                ("attn_v", vec![KV_HEADS * HEAD, HIDDEN]),
                ("attn_output", vec![HIDDEN, HEADS * HEAD]),
                ("attn_q_norm", vec![HEAD]),
                ("attn_k_norm", vec![HEAD]),
                ("ffn_gate_inp", vec![self.count, HIDDEN]),
                ("ffn_gate_exps", vec![count, self.width, HIDDEN]),
                ("ffn_up_exps", vec![count, self.width, HIDDEN]),
                ("ffn_down_exps", vec![count, HIDDEN, self.width]),
            ] {
                list.push((format!("blk.{layer}.{name}.weight"), shape));
            }
        }
        list.retain(|(name, _)| name != self.without);
        if !self.also.is_empty() {
            list.push((self.also.to_owned(), vec![HIDDEN]));
        }
        list
    }

    fn tensor(self, name: &str, shape: &[usize]) -> QTensor {
        let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let width = shape[shape.len() - 1] as f32;
        let (middle, most) = match name.contains("norm") {
            true => (1.0, 0.2),
            false => (0.0, 2.0 / width.sqrt()),
        };
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|_| middle + most * random.random_range(-1.0f32..1.0)).collect();
        let plain = shape.len() == 1 || name.starts_with("token_embd") || name.contains("ffn_gate_inp");
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        if plain {
            return QTensor::quantize(&tensor, GgmlDType::F32).unwrap();
        }
        let rounded = QTensor::quantize(&tensor, self.kind).unwrap();
        match self.dequantized {
            true => QTensor::quantize(&rounded.dequantize(&Device::Cpu).unwrap(), GgmlDType::F32).unwrap(),
            false => rounded,
        }
    }
}
