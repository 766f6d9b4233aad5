//! What a forward pass keeps for the backward pass, and the memory both work in. Matrices are (tokens, width); all of it
//! is used again by the next pass.

use super::Module;
use crate::decoder::DecoderConfig;

/// Activations of one pass.
#[derive(Debug, Default)]
pub(super) struct Tape {
    /// Each layer's input.
    pub(super) inputs: Vec<Vec<f32>>,
    /// The first layers' activations, and in the last place those of the layer at hand.
    pub(super) kept: Vec<Kept>,
}

/// What is cheap to keep of a layer and costly to compute again; norms and the activated gate are computed again.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Queries and keys after rotation, values.
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    /// Queries and keys before their norms, where a model has these.
    pub(super) raw: [Vec<f32>; 2],
    /// Attention's output and the log-sum-exp of its scores.
    pub(super) attended: Vec<f32>,
    pub(super) lse: Vec<f32>,
    /// The residual stream between attention and the feed-forward part.
    pub(super) middle: Vec<f32>,
    /// The gate before its activation, and what it multiplies; the backward pass puts their gradients here.
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    /// `A x` of each module's adapter.
    pub(super) small: [Vec<f32>; Module::COUNT],
}

/// Memory that every layer uses anew.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// A normalised stream, and the gradient of one.
    pub(super) normed: Vec<f32>,
    pub(super) dnormed: Vec<f32>,
    /// The gate's output, and its gradient.
    pub(super) activated: Vec<f32>,
    pub(super) dactivated: Vec<f32>,
    pub(super) dattended: Vec<f32>,
    pub(super) dq: Vec<f32>,
    pub(super) dk: Vec<f32>,
    pub(super) dv: Vec<f32>,
    /// Gradients of queries or keys before their norm.
    pub(super) draw: Vec<f32>,
    pub(super) dsmall: Vec<f32>,
    /// The stream, then its gradient; and the latter while the stream is computed again.
    pub(super) stream: Vec<f32>,
    pub(super) dstream: Vec<f32>,
    /// Hidden rows of the targets, normalised, and their gradients.
    pub(super) hidden: Vec<f32>,
    pub(super) dhidden: Vec<f32>,
    /// The stream at the targets, and its gradient.
    pub(super) last: Vec<f32>,
    pub(super) dlast: Vec<f32>,
}

impl Kept {
    pub(super) fn resize(&mut self, config: &DecoderConfig, tokens: usize) {
        let (q, kv) = (config.q_width(), config.kv_width());
        let raw = usize::from(config.qk_norm);
        let [raw_q, raw_k] = &mut self.raw;
        for (buffer, width) in [
            (&mut self.q, q),
            (&mut self.k, kv),
            (&mut self.v, kv),
            (raw_q, raw * q),
            (raw_k, raw * kv),
            (&mut self.attended, q),
            (&mut self.lse, config.heads),
            (&mut self.middle, config.hidden),
            (&mut self.gate, config.ffn),
            (&mut self.up, config.ffn),
        ] {
            buffer.resize(tokens * width, 0.0);
        }
    }

    /// Values per token.
    pub(super) fn width(config: &DecoderConfig) -> usize {
        let qk = (1 + usize::from(config.qk_norm)) * (config.q_width() + config.kv_width());
        qk + config.kv_width() + config.q_width() + config.heads + config.hidden + 2 * config.ffn
    }
}

impl Scratch {
    /// For a forward pass.
    pub(super) fn resize(&mut self, config: &DecoderConfig, tokens: usize) {
        self.stream.resize(tokens * config.hidden, 0.0);
        self.normed.resize(tokens * config.hidden, 0.0);
        self.activated.resize(tokens * config.ffn, 0.0);
    }

    /// For a backward pass.
    pub(super) fn resize_back(&mut self, config: &DecoderConfig, tokens: usize) {
        let (q, kv) = (config.q_width(), config.kv_width());
        for (buffer, width) in [
            (&mut self.dnormed, config.hidden),
            (&mut self.dactivated, config.ffn),
            (&mut self.dattended, q),
            (&mut self.dq, q),
            (&mut self.dk, kv),
            (&mut self.dv, kv),
            (&mut self.draw, if config.qk_norm { q } else { 0 }),
        ] {
            buffer.resize(tokens * width, 0.0);
        }
    }

    /// Values per token in both passes.
    pub(super) fn width(config: &DecoderConfig) -> usize {
        let (q, kv) = (config.q_width(), config.kv_width());
        3 * config.hidden + 2 * config.ffn + 2 * q + 2 * kv + if config.qk_norm { q } else { 0 }
    }
}
