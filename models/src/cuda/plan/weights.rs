//! Layout of a decoder's weights in device memory.

use half::bf16;

use super::{MatrixLayout, Placement, PlacementAllocator, WeightFormat};
use crate::architecture::QkNorm;
use crate::decoder::DecoderConfig;

/// Weights of one layer. Matrices, each at an `M`, have shape (out, in), with projections of the same input stacked; all
/// other tensors are `f32`.
#[derive(Debug, Clone, Copy)]
pub struct LayerLayout<M = Placement<bf16>> {
    /// RMS norm before attention.
    pub attention_norm: Placement<f32>,
    /// Query, key and value projections.
    pub qkv: M,
    /// Biases of these projections, end to end. `None` for models without them.
    pub bias: Option<Placement<f32>>,
    /// RMS norms per head of queries and of keys. `None` for models without them.
    pub head_norms: Option<[Placement<f32>; 2]>,
    /// Output projection of attention.
    pub o: M,
    /// RMS norm before the feed-forward block.
    pub ffn_norm: Placement<f32>,
    /// Gate and up projections.
    pub gate_up: M,
    /// Down projection.
    pub down: M,
}

/// All weights of a decoder in one allocation.
#[derive(Debug, Clone)]
pub struct WeightLayout<M = Placement<bf16>> {
    /// Embeddings, shape (vocab, hidden).
    pub embedding: Placement<bf16>,
    /// Weights of the layers.
    pub layers: Vec<LayerLayout<M>>,
    /// Final RMS norm.
    pub norm: Placement<f32>,
    /// Output projection to the vocabulary. `None` when it is tied to the embedding.
    pub head: Option<Placement<bf16>>,
    /// Rotary cosines and sines of all positions.
    pub rotary: Placement<f32>,
    /// Total bytes.
    pub bytes: usize,
}

impl WeightLayout {
    /// Lays out weights in `bf16` and rotary tables for sequences of at most `context` tokens.
    pub fn new(config: &DecoderConfig, context: usize) -> Self {
        Self::place(config, context, |allocator, out, inn| allocator.place(out * inn))
    }
}

impl WeightLayout<MatrixLayout> {
    /// Lays out weights in a format and rotary tables for sequences of at most `context` tokens.
    pub fn of(format: WeightFormat, config: &DecoderConfig, context: usize) -> Self {
        Self::place(config, context, |allocator, out, inn| format.place(allocator, out, inn))
    }
}

impl<M> WeightLayout<M> {
    /// Lays out weights whose layers' matrices, of shape (out, in), are placed by `matrix`.
    fn place(
        config: &DecoderConfig,
        context: usize,
        matrix: impl Fn(&mut PlacementAllocator, usize, usize) -> M,
    ) -> Self {
        let hidden = config.hidden;
        let ffn = config.ffn;
        let dim = config.head_dim;
        let qkv = config.q_width() + 2 * config.kv_width();
        let mut allocator = PlacementAllocator::default();
        let embedding = allocator.place(config.vocab * hidden);
        let layer = |_| LayerLayout {
            attention_norm: allocator.place(hidden),
            qkv: matrix(&mut allocator, qkv, hidden),
            bias: config.architecture.qkv_bias.then(|| allocator.place(qkv)),
            head_norms: (config.architecture.qk_norm == QkNorm::Head)
                .then(|| [allocator.place(dim), allocator.place(dim)]),
            o: matrix(&mut allocator, hidden, config.q_width()),
            ffn_norm: allocator.place(hidden),
            gate_up: matrix(&mut allocator, 2 * ffn, hidden),
            down: matrix(&mut allocator, hidden, ffn),
        };
        let layers = (0..config.layers).map(layer).collect();
        Self {
            embedding,
            layers,
            norm: allocator.place(hidden),
            head: (!config.tied_embeddings).then(|| allocator.place(config.vocab * hidden)),
            rotary: allocator.place(context * dim),
            bytes: allocator.bytes(),
        }
    }
}
