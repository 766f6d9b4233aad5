//! Weights of one decoder layer.

use super::DecoderConfig;
use super::feed_forward::FeedForward;
use super::fused::FusedProjections;
use super::tensor::{matrix, vector};
use crate::adapter::Site;
use crate::architecture::{LayerRotary, QkNorm};
use crate::kernel::arithmetic::Matrix;
use crate::kernel::attention::ScoreRule;
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Attention and feed-forward weights of one layer.
#[derive(Debug)]
pub(crate) struct DecoderLayer {
    /// Norms before and after attention.
    pub(crate) attention_norms: BlockNorms,
    /// Query, key and value projections.
    pub(crate) qkv: FusedProjections,
    /// Biases of queries, keys and values, end to end (Qwen2). `None` if there are none.
    pub(crate) bias: Option<Vec<f32>>,
    /// Norms of queries and keys, of the width of a head or of all heads. `None` if there are none.
    pub(crate) qk_norms: Option<[Vec<f32>; 2]>,
    /// Rotation of queries and keys.
    pub(crate) rotary: LayerRotary,
    /// Scale, window and limit of the scores.
    pub(crate) rule: ScoreRule,
    /// Output projection of attention.
    pub(crate) o: Matrix,
    /// Norms before and after the feed-forward block.
    pub(crate) ffn_norms: BlockNorms,
    pub(crate) feed_forward: FeedForward,
}

/// Norms on the input and on the output of a block. `None` where there is none.
#[derive(Debug)]
pub(crate) struct BlockNorms {
    pub(crate) before: Option<Vec<f32>>,
    pub(crate) after: Option<Vec<f32>>,
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
        let q = config.q_width();
        let kv = config.kv_width();
        let qkv = [("q", q), ("k", kv), ("v", kv)];
        let bias = |(part, width): &(&str, usize)| {
            vector(weights, &format!("model.layers.{index}.self_attn.{part}_proj.bias"), *width)
        };
        let architecture = &config.architecture;
        let norms = architecture.norms.names();
        let norm = |rest: Option<&str>| {
            rest.map(|rest| vector(weights, &format!("model.layers.{index}.{rest}"), hidden)).transpose()
        };
        let qk_norm = |part: &str, width| vector(weights, &name(&format!("self_attn.{part}_norm")), width);
        Ok(Self {
            attention_norms: BlockNorms { before: norm(norms.attention_in)?, after: norm(norms.attention_out)? },
            qkv: fused(&qkv.map(|(part, out)| (name(&format!("self_attn.{part}_proj")), out)))?,
            bias: match architecture.qkv_bias {
                true => Some(qkv.iter().map(bias).collect::<Result<Vec<_>, _>>()?.concat()),
                false => None,
            },
            qk_norms: match architecture.qk_norm {
                QkNorm::None => None,
                QkNorm::Head => Some([qk_norm("q", config.head_dim)?, qk_norm("k", config.head_dim)?]),
                QkNorm::Whole => Some([qk_norm("q", q)?, qk_norm("k", kv)?]),
            },
            rotary: architecture.layer(index).rotary,
            rule: config.score_rule(index),
            o: arithmetic.matrix(matrix(weights, &name("self_attn.o_proj"), hidden, q)?),
            ffn_norms: BlockNorms { before: norm(norms.ffn_in)?, after: norm(norms.ffn_out)? },
            feed_forward: FeedForward::load(weights, config, arithmetic, index)?,
        })
    }

    /// Matrix that holds projection `index` of a site, and the index of the projection's first row in the matrix.
    /// `None` in a layer of experts, which has no such projection.
    pub(super) fn projection(&self, site: Site, index: usize) -> Option<(&Matrix, usize)> {
        match (site, &self.feed_forward) {
            (Site::Qkv, _) => Some(self.qkv.part(index)),
            (Site::O, _) => Some((&self.o, 0)),
            (Site::GateUp, FeedForward::Dense(block)) => Some(block.gate_up.part(index)),
            (Site::Down, FeedForward::Dense(block)) => Some((&block.down, 0)),
            (Site::GateUp | Site::Down, FeedForward::Experts(_)) => None,
        }
    }

    /// Bias of projection `index` of a site. Empty if there is none.
    pub(super) fn projection_bias(&self, config: &DecoderConfig, site: Site, index: usize) -> &[f32] {
        let q = config.q_width();
        let kv = config.kv_width();
        let (Site::Qkv, Some(bias)) = (site, &self.bias) else { return &[] };
        match index {
            0 => &bias[..q],
            1 => &bias[q..q + kv],
            _ => &bias[q + kv..],
        }
    }

    /// Size of the matrices, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.qkv.bytes() + self.o.bytes() + self.feed_forward.bytes()
    }
}
