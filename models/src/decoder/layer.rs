//! Weights of one decoder layer.

use super::DecoderConfig;
use super::fused::FusedProjections;
use super::tensor::{matrix, vector};
use crate::kernel::arithmetic::Matrix;
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Attention and feed-forward weights of one layer.
#[derive(Debug)]
pub(crate) struct DecoderLayer {
    /// Norm before attention.
    pub(crate) attention_norm: Vec<f32>,
    /// Query, key and value projections.
    pub(crate) qkv: FusedProjections,
    /// Biases of queries, keys and values, end to end (Qwen2). `None` if there are none.
    pub(crate) bias: Option<Vec<f32>>,
    /// Per-head norms of queries and keys (Qwen3). `None` if there are none.
    pub(crate) head_norms: Option<[Vec<f32>; 2]>,
    /// Output projection of attention.
    pub(crate) o: Matrix,
    /// Norm before the feed-forward block.
    pub(crate) ffn_norm: Vec<f32>,
    /// Gate and up projections.
    pub(crate) gate_up: FusedProjections,
    /// Down projection.
    pub(crate) down: Matrix,
}

impl DecoderLayer {
    /// Loads layer `index` by the tensor names of Hugging Face checkpoints.
    pub(crate) fn load(
        weights: &Weights,
        config: &DecoderConfig,
        arithmetic: Arithmetic,
        index: usize,
    ) -> Result<Self, ModelError> {
        let fused = |named: &[(String, usize)]| FusedProjections::load(weights, arithmetic, named, config.hidden);
        let name = |rest: &str| format!("model.layers.{index}.{rest}.weight");
        let hidden = config.hidden;
        let ffn = config.ffn;
        let q = config.q_width();
        let kv = config.kv_width();
        let qkv = [("q", q), ("k", kv), ("v", kv)];
        let bias = |(part, width): &(&str, usize)| {
            vector(weights, &format!("model.layers.{index}.self_attn.{part}_proj.bias"), *width)
        };
        let head_norm = |part: &str| vector(weights, &name(&format!("self_attn.{part}_norm")), config.head_dim);
        Ok(Self {
            attention_norm: vector(weights, &name("input_layernorm"), hidden)?,
            qkv: fused(&qkv.map(|(part, out)| (name(&format!("self_attn.{part}_proj")), out)))?,
            bias: match config.qkv_bias {
                true => Some(qkv.iter().map(bias).collect::<Result<Vec<_>, _>>()?.concat()),
                false => None,
            },
            head_norms: match config.qk_norm {
                true => Some([head_norm("q")?, head_norm("k")?]),
                false => None,
            },
            o: arithmetic.matrix(matrix(weights, &name("self_attn.o_proj"), hidden, q)?),
            ffn_norm: vector(weights, &name("post_attention_layernorm"), hidden)?,
            gate_up: fused(&[(name("mlp.gate_proj"), ffn), (name("mlp.up_proj"), ffn)])?,
            down: arithmetic.matrix(matrix(weights, &name("mlp.down_proj"), hidden, ffn)?),
        })
    }

    /// Size of the matrices, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.qkv.bytes() + self.o.bytes() + self.gate_up.bytes() + self.down.bytes()
    }
}
