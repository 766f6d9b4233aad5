//! Where the weights lie.

use half::bf16;

use super::{Carver, Place};
use crate::decoder::DecoderConfig;

/// One layer's weights. Matrices are `bf16`, shape (out, in), projections of one input stacked; what a kernel reads beside
/// them is `f32`.
#[derive(Debug, Clone, Copy)]
pub struct LayerPlaces {
    /// Norm before attention.
    pub attention_norm: Place<f32>,
    /// Queries, keys and values.
    pub qkv: Place<bf16>,
    /// Their biases, end to end.
    pub bias: Option<Place<f32>>,
    /// Norms of each head of queries and of keys.
    pub head_norms: Option<[Place<f32>; 2]>,
    /// Attention's output projection.
    pub o: Place<bf16>,
    /// Norm before the feed-forward part.
    pub ffn_norm: Place<f32>,
    /// Gate and up projections.
    pub gate_up: Place<bf16>,
    /// Down projection.
    pub down: Place<bf16>,
}

/// All weights of a decoder, in one piece of memory.
#[derive(Debug, Clone)]
pub struct WeightPlaces {
    /// Embeddings, shape (vocab, hidden).
    pub embedding: Place<bf16>,
    /// Layer by layer.
    pub layers: Vec<LayerPlaces>,
    /// The last norm.
    pub norm: Place<f32>,
    /// Output projection; the embedding where there is none.
    pub head: Option<Place<bf16>>,
    /// Rotary cosines and sines of all positions.
    pub rotary: Place<f32>,
    /// Bytes of all together.
    pub bytes: usize,
}

impl WeightPlaces {
    /// For sequences of at most `context` tokens.
    pub fn new(config: &DecoderConfig, context: usize) -> Self {
        let (hidden, ffn, dim) = (config.hidden, config.ffn, config.head_dim);
        let qkv = config.q_width() + 2 * config.kv_width();
        let mut carver = Carver::default();
        let embedding = carver.place(config.vocab * hidden);
        let layer = |_| LayerPlaces {
            attention_norm: carver.place(hidden),
            qkv: carver.place(qkv * hidden),
            bias: config.qkv_bias.then(|| carver.place(qkv)),
            head_norms: config.qk_norm.then(|| [carver.place(dim), carver.place(dim)]),
            o: carver.place(hidden * config.q_width()),
            ffn_norm: carver.place(hidden),
            gate_up: carver.place(2 * ffn * hidden),
            down: carver.place(hidden * ffn),
        };
        let layers = (0..config.layers).map(layer).collect();
        Self {
            embedding,
            layers,
            norm: carver.place(hidden),
            head: (!config.tied_embeddings).then(|| carver.place(config.vocab * hidden)),
            rotary: carver.place(context * dim),
            bytes: carver.bytes(),
        }
    }
}
