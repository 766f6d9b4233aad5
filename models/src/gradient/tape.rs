//! Activations kept for the backward pass, and working memory. Matrices are (tokens, width) or (targets, width).
//! The next pass reuses all memory.

use super::Module;
use crate::architecture::{Experts, NormPlacement, QkNorm};
use crate::decoder::{DecoderConfig, ExpertRoutes};

/// Quantities that determine the memory of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct TapeSize<'a> {
    pub(super) config: &'a DecoderConfig,
    /// Adapter rank of each module; 0 without an adapter.
    pub(super) ranks: [usize; Module::COUNT],
    pub(super) tokens: usize,
    pub(super) targets: usize,
    /// Number of layers that keep their activations for the backward pass; the others recompute them.
    pub(super) whole: usize,
    /// If `true`, buffers that an earlier pass enlarged free the memory that this pass does not need.
    pub(super) exact: bool,
}

/// Kept activations of one pass.
#[derive(Debug, Default)]
pub(super) struct Tape {
    /// Input of each layer.
    pub(super) inputs: Vec<Vec<f32>>,
    /// Activations of the first layers, followed by those of the current layer.
    pub(super) activations: Vec<LayerActivations>,
}

/// Activations of a layer that are cheap to keep and costly to recompute. Norms and the activated gate are
/// recomputed.
#[derive(Debug, Default)]
pub(super) struct LayerActivations {
    /// Queries and keys after rotation, and values.
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    /// Queries and keys before their norms, if the model has these norms.
    pub(super) raw: [Vec<f32>; 2],
    /// Output of attention, and the log-sum-exp of its scores.
    pub(super) attended: Vec<f32>,
    pub(super) lse: Vec<f32>,
    /// Outputs of attention's projection and of the feed-forward block before their norms, if the model has these
    /// norms.
    pub(super) attention_out: Vec<f32>,
    pub(super) ffn_out: Vec<f32>,
    /// Residual stream between attention and the feed-forward block.
    pub(super) middle: Vec<f32>,
    /// Gate before its activation, and the up projection, in layers without experts. The backward pass replaces both by
    /// their gradients.
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    /// `A x` of each module's adapter.
    pub(super) small: [Vec<f32>; Module::COUNT],
}

/// Working memory that every layer reuses.
#[derive(Debug, Default)]
pub(super) struct PassScratch {
    /// Normalized stream, and its gradient.
    pub(super) normed: Vec<f32>,
    pub(super) dnormed: Vec<f32>,
    /// Output of the gated activation, and its gradient.
    pub(super) activated: Vec<f32>,
    pub(super) dactivated: Vec<f32>,
    pub(super) dattended: Vec<f32>,
    pub(super) dq: Vec<f32>,
    pub(super) dk: Vec<f32>,
    pub(super) dv: Vec<f32>,
    /// Output of a block before its factor, or the gradient of this output. Empty unless the model has experts,
    /// residual factors or norms after blocks.
    pub(super) branch: Vec<f32>,
    /// Choice of experts, and the rows of one expert with their gate and up projections, if the model has experts.
    pub(super) routes: ExpertRoutes,
    pub(super) rows: Vec<f32>,
    pub(super) expert_gate: Vec<f32>,
    pub(super) expert_up: Vec<f32>,
    /// Gradients of the factors on the outputs of experts, and of the router's logits.
    pub(super) dprobabilities: Vec<f32>,
    pub(super) dlogits: Vec<f32>,
    /// Gradients of queries or keys before their norm.
    pub(super) draw: Vec<f32>,
    pub(super) dsmall: Vec<f32>,
    /// Residual stream, then its gradient; a second buffer holds the gradient while the stream is recomputed.
    pub(super) stream: Vec<f32>,
    pub(super) dstream: Vec<f32>,
    /// Normalized hidden rows of the targets, and their gradients.
    pub(super) hidden: Vec<f32>,
    pub(super) dhidden: Vec<f32>,
    /// Residual stream at the targets, and its gradient.
    pub(super) last: Vec<f32>,
    pub(super) dlast: Vec<f32>,
}

impl TapeSize<'_> {
    /// Returns `true` if any layer recomputes its activations. The kept layers do not, nor does the last layer,
    /// whose activations are still in memory.
    pub(super) fn again(&self) -> bool {
        self.whole + 1 < self.config.layers
    }

    /// Width of the gate and up projections that a slot of [`Tape::activations`] holds: 0 if all of its layers have
    /// experts, which compute both again in the backward pass.
    fn kept_ffn_width(&self, slot: usize) -> usize {
        let TapeSize { config, whole, .. } = *self;
        let mut layers = if slot < whole { slot..slot + 1 } else { slot..config.layers };
        let dense = layers.any(|layer| config.architecture.experts(layer).is_none());
        if dense { config.ffn } else { 0 }
    }

    /// Applies a step to a buffer of `len` values.
    fn fit(&self, step: FitStep, buffer: &mut Vec<f32>, len: usize) {
        match step {
            FitStep::Shrink => {
                buffer.truncate(len);
                if self.exact {
                    buffer.shrink_to(len);
                }
            }
            FitStep::Grow => {
                // `resize` alone may round the capacity up, which the memory limit would not see.
                buffer.reserve_exact(len - buffer.len());
                buffer.resize(len, 0.0);
            }
        }
    }

    fn apply<const N: usize>(&self, step: FitStep, buffers: [&mut Vec<f32>; N], lens: [usize; N]) {
        buffers.into_iter().zip(lens).for_each(|(buffer, len)| self.fit(step, buffer, len));
    }
}

/// A step in resizing a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FitStep {
    /// Shortens the buffer and, in an exact pass, frees the excess.
    Shrink,
    /// Lengthens the buffer without over-allocating.
    Grow,
}

/// Steps that resize the buffers. All buffers shrink before any grows: otherwise two passes that each keep to a
/// limit could exceed it together.
pub(super) const STEPS: [FitStep; 2] = [FitStep::Shrink, FitStep::Grow];

impl Tape {
    /// Applies one of [`STEPS`] for a forward pass that is followed by a backward pass.
    pub(super) fn fit(&mut self, size: &TapeSize<'_>, step: FitStep) {
        let layers = size.config.layers;
        let stream = size.tokens * size.config.hidden;
        self.inputs.resize_with(layers, Vec::new);
        self.inputs.iter_mut().for_each(|input| size.fit(step, input, stream));
        // One more than the kept layers: the current layer's activations, which recomputing layers share.
        self.activations.resize_with(layers.min(size.whole + 1), LayerActivations::default);
        self.activations.iter_mut().enumerate().for_each(|(slot, layer)| layer.fit(size, slot, step));
    }

    /// Size after resizing, in bytes.
    pub(super) fn bytes(size: &TapeSize<'_>) -> usize {
        let layers = size.config.layers;
        let inputs = size_of::<f32>() * layers * size.tokens * size.config.hidden;
        let slots = 0..layers.min(size.whole + 1);
        inputs + slots.map(|slot| LayerActivations::bytes(size, slot)).sum::<usize>()
    }

    /// Capacity in bytes.
    pub(super) fn allocated_bytes(&mut self) -> usize {
        let inputs: usize = self.inputs.iter().map(Vec::capacity).sum();
        let activations: usize = self.activations.iter_mut().map(|layer| capacity(&layer.buffers())).sum();
        size_of::<f32>() * (inputs + activations)
    }
}

impl LayerActivations {
    const BUFFERS: usize = 12 + Module::COUNT;

    /// Applies one of [`STEPS`] to a slot of [`Tape::activations`].
    pub(super) fn fit(&mut self, size: &TapeSize<'_>, slot: usize, step: FitStep) {
        size.apply(step, self.buffers(), Self::lens(size, slot));
    }

    /// Size of a slot after resizing, in bytes.
    pub(super) fn bytes(size: &TapeSize<'_>, slot: usize) -> usize {
        size_of::<f32>() * Self::lens(size, slot).into_iter().sum::<usize>()
    }

    fn buffers(&mut self) -> [&mut Vec<f32>; Self::BUFFERS] {
        let Self { q, k, v, raw: [raw_q, raw_k], attended, lse, attention_out, ffn_out, middle, gate, up, small } =
            self;
        let [a, b, c, d, e, f, g] = small;
        [q, k, v, raw_q, raw_k, attended, lse, attention_out, ffn_out, middle, gate, up, a, b, c, d, e, f, g]
    }

    /// Length of each buffer, in the order of [`buffers`](Self::buffers).
    fn lens(size: &TapeSize<'_>, slot: usize) -> [usize; Self::BUFFERS] {
        let config = size.config;
        let q = config.q_width();
        let kv = config.kv_width();
        let raw = usize::from(config.architecture.qk_norm != QkNorm::None);
        let out = if config.architecture.norms == NormPlacement::Before { 0 } else { config.hidden };
        let [a, b, c, d, e, f, g] = size.ranks;
        let hidden = config.hidden;
        let heads = config.heads;
        let ffn = size.kept_ffn_width(slot);
        let raw_kv = raw * kv;
        [q, kv, kv, raw * q, raw_kv, q, heads, out, out, hidden, ffn, ffn, a, b, c, d, e, f, g]
            .map(|width| width * size.tokens)
    }
}

impl PassScratch {
    /// Applies one of [`STEPS`] for a forward pass and, if `back`, for a backward pass.
    pub(super) fn fit(&mut self, size: &TapeSize<'_>, back: bool, step: FitStep) {
        size.apply(step, self.forward(), Self::forward_lens(size));
        if back {
            size.apply(step, self.backward(), Self::backward_lens(size));
        }
        if let Some(experts) = &size.config.architecture.experts {
            match step {
                FitStep::Shrink if size.exact => self.routes.shrink(size.tokens, experts.count, experts.per_token),
                FitStep::Shrink => {}
                FitStep::Grow => self.routes.resize_exact(size.tokens, experts.count, experts.per_token),
            }
        }
    }

    /// Size for a forward pass and, if `back`, for a backward pass, in bytes.
    pub(super) fn bytes(size: &TapeSize<'_>, back: bool) -> usize {
        let forward: usize = Self::forward_lens(size).into_iter().sum();
        let backward: usize = Self::backward_lens(size).into_iter().sum();
        let routes = |experts: &Experts| ExpertRoutes::bytes_for(size.tokens, experts.count, experts.per_token);
        let routes = size.config.architecture.experts.as_ref().map_or(0, routes);
        routes + size_of::<f32>() * if back { forward + backward } else { forward }
    }

    /// Capacity in bytes.
    pub(super) fn allocated_bytes(&mut self) -> usize {
        self.routes.allocated_bytes() + size_of::<f32>() * (capacity(&self.forward()) + capacity(&self.backward()))
    }

    fn forward(&mut self) -> [&mut Vec<f32>; 9] {
        let Self { stream, normed, activated, branch, rows, expert_gate, expert_up, hidden, last, .. } = self;
        [stream, normed, activated, branch, rows, expert_gate, expert_up, hidden, last]
    }

    fn forward_lens(size: &TapeSize<'_>) -> [usize; 9] {
        let TapeSize { config, tokens, targets, .. } = *size;
        let architecture = &config.architecture;
        let stream = tokens * config.hidden;
        let last = targets * config.hidden;
        let wide = tokens * config.widest_feed_forward();
        let [rows, expert] = match &architecture.experts {
            Some(experts) => [stream, tokens * experts.widest()],
            None => [0; 2],
        };
        let plain = architecture.norms == NormPlacement::Before && architecture.residual_scale == 1.0 && rows == 0;
        let branch = if plain { 0 } else { stream };
        [stream, stream, wide, branch, rows, expert, expert, last, last]
    }

    fn backward(&mut self) -> [&mut Vec<f32>; 13] {
        let Self { dnormed, dactivated, dattended, dq, dk, dv, draw, dsmall, dstream, dhidden, dlast, .. } = self;
        let Self { dprobabilities, dlogits, .. } = self;
        [dnormed, dactivated, dattended, dq, dk, dv, draw, dsmall, dstream, dhidden, dlast, dprobabilities, dlogits]
    }

    fn backward_lens(size: &TapeSize<'_>) -> [usize; 13] {
        let TapeSize { config, tokens, targets, .. } = *size;
        let hidden = config.hidden;
        let q = tokens * config.q_width();
        let kv = tokens * config.kv_width();
        let draw = if config.architecture.qk_norm != QkNorm::None { q } else { 0 };
        let small = tokens * size.ranks.into_iter().max().unwrap_or(0);
        // The gradient needs a buffer of its own only while a stream is recomputed at the same time.
        let dstream = if size.again() { tokens * hidden } else { 0 };
        let last = targets * hidden;
        let experts = config.architecture.experts.as_ref();
        let [chosen, all] =
            experts.map_or([0; 2], |experts| [experts.per_token, experts.count].map(|each| each * tokens));
        let wide = tokens * config.widest_feed_forward();
        [tokens * hidden, wide, q, q, kv, kv, draw, small, dstream, last, last, chosen, all]
    }
}

fn capacity<const N: usize>(buffers: &[&mut Vec<f32>; N]) -> usize {
    buffers.iter().map(|buffer| buffer.capacity()).sum()
}
