//! Activations kept for the backward pass, and working memory. Matrices are (tokens, width) or (targets, width).
//! The next pass reuses all memory.

use super::Module;
use crate::architecture::{NormPlacement, QkNorm};
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
    pub(super) kept: Vec<LayerActivations>,
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
    /// Outputs of attention's projection and of the feed-forward block before their norms, if the model has these norms.
    pub(super) attention_out: Vec<f32>,
    pub(super) ffn_out: Vec<f32>,
    /// Residual stream between attention and the feed-forward block.
    pub(super) middle: Vec<f32>,
    /// Gate before its activation, and the up projection; the backward pass replaces both by their gradients.
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    /// `A x` of each module's adapter.
    pub(super) small: [Vec<f32>; Module::COUNT],
}

/// Working memory that every layer reuses.
#[derive(Debug, Default)]
pub(super) struct PassScratch {
    /// Normalized stream, or its gradient.
    pub(super) normed: Vec<f32>,
    pub(super) dnormed: Vec<f32>,
    /// Output of the gated activation, and its gradient.
    pub(super) activated: Vec<f32>,
    pub(super) dactivated: Vec<f32>,
    pub(super) dattended: Vec<f32>,
    pub(super) dq: Vec<f32>,
    pub(super) dk: Vec<f32>,
    pub(super) dv: Vec<f32>,
    /// Output of a block before its factor, or the gradient of that, if the model has experts, factors or norms after
    /// blocks.
    pub(super) branch: Vec<f32>,
    /// Choice of experts, and the rows of one expert, if the model has experts.
    pub(super) routes: ExpertRoutes,
    pub(super) rows: Vec<f32>,
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

    /// Shortens a buffer to `len` and, if `exact`, frees the excess.
    fn trim(&self, buffer: &mut Vec<f32>, len: usize) {
        buffer.truncate(len);
        if self.exact {
            buffer.shrink_to(len);
        }
    }

    /// Lengthens a buffer to `len` without over-allocating.
    fn grow(&self, buffer: &mut Vec<f32>, len: usize) {
        // `resize` alone may round the capacity up, which the memory limit would not see.
        buffer.reserve_exact(len - buffer.len());
        buffer.resize(len, 0.0);
    }

    fn apply<const N: usize>(&self, fit: Fit, buffers: [&mut Vec<f32>; N], lens: [usize; N]) {
        buffers.into_iter().zip(lens).for_each(|(buffer, len)| fit(self, buffer, len));
    }
}

/// A step in resizing a buffer.
pub(super) type Fit = fn(&TapeSize<'_>, &mut Vec<f32>, usize);

/// Steps that resize the buffers. All buffers shrink before any grows: otherwise two passes that each keep to a
/// limit could exceed it together.
pub(super) const STEPS: [Fit; 2] =
    [|size, buffer, len| size.trim(buffer, len), |size, buffer, len| size.grow(buffer, len)];

impl Tape {
    /// Applies one of [`STEPS`] for a forward pass that is followed by a backward pass.
    pub(super) fn fit(&mut self, size: &TapeSize<'_>, step: Fit) {
        let layers = size.config.layers;
        let stream = size.tokens * size.config.hidden;
        self.inputs.resize_with(layers, Vec::new);
        self.inputs.iter_mut().for_each(|input| step(size, input, stream));
        // One more than the kept layers: the current layer's activations, which recomputing layers share.
        self.kept.resize_with(layers.min(size.whole + 1), LayerActivations::default);
        self.kept.iter_mut().for_each(|kept| kept.fit(size, step));
    }

    /// Number of values after resizing.
    pub(super) fn len(size: &TapeSize<'_>) -> usize {
        let layers = size.config.layers;
        layers * size.tokens * size.config.hidden + layers.min(size.whole + 1) * LayerActivations::len(size)
    }

    /// Capacity in values.
    pub(super) fn held(&mut self) -> usize {
        let inputs: usize = self.inputs.iter().map(Vec::capacity).sum();
        inputs + self.kept.iter_mut().map(|kept| held(&kept.buffers())).sum::<usize>()
    }
}

impl LayerActivations {
    const BUFFERS: usize = 12 + Module::COUNT;

    /// Applies one of [`STEPS`].
    pub(super) fn fit(&mut self, size: &TapeSize<'_>, step: Fit) {
        size.apply(step, self.buffers(), Self::lens(size));
    }

    /// Total number of values.
    pub(super) fn len(size: &TapeSize<'_>) -> usize {
        Self::lens(size).into_iter().sum()
    }

    fn buffers(&mut self) -> [&mut Vec<f32>; Self::BUFFERS] {
        let Self { q, k, v, raw: [raw_q, raw_k], attended, lse, attention_out, ffn_out, middle, gate, up, small } =
            self;
        let [a, b, c, d, e, f, g] = small;
        [q, k, v, raw_q, raw_k, attended, lse, attention_out, ffn_out, middle, gate, up, a, b, c, d, e, f, g]
    }

    /// Length of each buffer, in the order of [`buffers`](Self::buffers).
    fn lens(size: &TapeSize<'_>) -> [usize; Self::BUFFERS] {
        let config = size.config;
        let q = config.q_width();
        let kv = config.kv_width();
        let raw = usize::from(config.architecture.qk_norm != QkNorm::None);
        let out = if config.architecture.norms == NormPlacement::Before { 0 } else { config.hidden };
        let [a, b, c, d, e, f, g] = size.ranks;
        let hidden = config.hidden;
        let heads = config.heads;
        let ffn = config.widest_feed_forward();
        let raw_kv = raw * kv;
        [q, kv, kv, raw * q, raw_kv, q, heads, out, out, hidden, ffn, ffn, a, b, c, d, e, f, g]
            .map(|width| width * size.tokens)
    }
}

impl PassScratch {
    /// Applies one of [`STEPS`] for a forward pass and, if `back`, for a backward pass.
    pub(super) fn fit(&mut self, size: &TapeSize<'_>, back: bool, step: Fit) {
        size.apply(step, self.forward(), Self::forward_lens(size));
        if back {
            size.apply(step, self.backward(), Self::backward_lens(size));
        }
    }

    /// Number of values for a forward pass and, if `back`, for a backward pass.
    pub(super) fn len(size: &TapeSize<'_>, back: bool) -> usize {
        let forward: usize = Self::forward_lens(size).into_iter().sum();
        let backward: usize = Self::backward_lens(size).into_iter().sum();
        if back { forward + backward } else { forward }
    }

    /// Capacity in values.
    pub(super) fn held(&mut self) -> usize {
        held(&self.forward()) + held(&self.backward())
    }

    fn forward(&mut self) -> [&mut Vec<f32>; 7] {
        let Self { stream, normed, activated, branch, rows, hidden, last, .. } = self;
        [stream, normed, activated, branch, rows, hidden, last]
    }

    fn forward_lens(size: &TapeSize<'_>) -> [usize; 7] {
        let architecture = &size.config.architecture;
        let experts = architecture.experts.is_some();
        let plain = architecture.norms == NormPlacement::Before && architecture.residual_scale == 1.0 && !experts;
        let stream = size.tokens * size.config.hidden;
        let last = size.targets * size.config.hidden;
        let wide = size.tokens * size.config.widest_feed_forward();
        [stream, stream, wide, if plain { 0 } else { stream }, if experts { stream } else { 0 }, last, last]
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
        // The gradient needs a buffer of its own only while a stream is recomputed beside it.
        let dstream = if size.again() { tokens * hidden } else { 0 };
        let last = targets * hidden;
        let experts = config.architecture.experts.as_ref();
        let [chosen, all] =
            experts.map_or([0; 2], |experts| [experts.per_token, experts.count].map(|each| each * tokens));
        let wide = tokens * config.widest_feed_forward();
        [tokens * hidden, wide, q, q, kv, kv, draw, small, dstream, last, last, chosen, all]
    }
}

fn held<const N: usize>(buffers: &[&mut Vec<f32>; N]) -> usize {
    buffers.iter().map(|buffer| buffer.capacity()).sum()
}
