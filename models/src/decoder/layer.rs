//! One layer's weights.

use super::DecoderConfig;
use super::fused::Fused;
use super::tensor::{matrix, vector};
use crate::kernel::arithmetic::Matrix;
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Attention and feed-forward weights of one layer.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Norm before attention.
    pub(crate) attention_norm: Vec<f32>,
    /// Queries, keys and values.
    pub(crate) qkv: Fused,
    /// Biases of queries, keys and values, end to end (Qwen2).
    pub(crate) bias: Option<Vec<f32>>,
    /// Norms of each head of queries and of keys (Qwen3).
    pub(crate) head_norms: Option<[Vec<f32>; 2]>,
    /// Output projection of attention.
    pub(crate) o: Matrix,
    /// Norm before the feed-forward part.
    pub(crate) ffn_norm: Vec<f32>,
    /// Gate and up projections.
    pub(crate) gate_up: Fused,
    /// Down projection.
    pub(crate) down: Matrix,
}

impl Layer {
    /// Loads layer `index` by the names of the model hub's checkpoints.
    pub(crate) fn load(
        weights: &Weights,
        config: &DecoderConfig,
        arithmetic: Arithmetic,
        index: usize,
    ) -> Result<Self, ModelError> {
        let fused = |named: &[(String, usize)]| Fused::load(weights, arithmetic, named, config.hidden);
        let name = |rest: &str| format!("model.layers.{index}.{rest}.weight");
        let (hidden, ffn) = (config.hidden, config.ffn);
        let (q, kv) = (config.q_width(), config.kv_width());
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

    /// Bytes the matrices take.
    pub(crate) fn bytes(&self) -> usize {
        self.qkv.bytes() + self.o.bytes() + self.gate_up.bytes() + self.down.bytes()
    }
}
