//! What a forward pass keeps for the backward pass, and the memory both work in. Matrices are (tokens, width) or (targets,
//! width). The next pass uses it again.

use super::Module;
use crate::decoder::DecoderConfig;

/// What the memory of a pass depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size<'a> {
    pub(super) config: &'a DecoderConfig,
    /// The rank of each module's adapter; 0 without one.
    pub(super) ranks: [usize; Module::COUNT],
    pub(super) tokens: usize,
    pub(super) targets: usize,
    /// Layers that keep their activations for the backward pass; the others compute them again.
    pub(super) whole: usize,
    /// Whether buffers that an earlier pass made larger give back what this one does not need.
    pub(super) exact: bool,
}

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

impl Size<'_> {
    /// Whether any layer computes its activations again: all do but the whole ones and the last, whose are there still.
    pub(super) fn again(&self) -> bool {
        self.whole + 1 < self.config.layers
    }

    /// Shortens a buffer to `len`; if exact, gives back what it has beyond.
    fn trim(&self, buffer: &mut Vec<f32>, len: usize) {
        buffer.truncate(len);
        if self.exact {
            buffer.shrink_to(len);
        }
    }

    /// Lengthens a buffer to `len`, with no more memory than that takes.
    fn grow(&self, buffer: &mut Vec<f32>, len: usize) {
        buffer.reserve_exact(len - buffer.len());
        buffer.resize(len, 0.0);
    }

    fn apply<const N: usize>(&self, fit: Fit, buffers: [&mut Vec<f32>; N], lens: [usize; N]) {
        buffers.into_iter().zip(lens).for_each(|(buffer, len)| fit(self, buffer, len));
    }
}

/// A step towards giving a buffer its length.
pub(super) type Fit = fn(&Size<'_>, &mut Vec<f32>, usize);

/// The steps that give buffers their lengths. All shrink before any grows, or both together would pass a limit that each
/// of two passes keeps to.
pub(super) const STEPS: [Fit; 2] =
    [|size, buffer, len| size.trim(buffer, len), |size, buffer, len| size.grow(buffer, len)];

impl Tape {
    /// One of [`STEPS`] for a forward pass that a backward pass follows.
    pub(super) fn fit(&mut self, size: &Size<'_>, step: Fit) {
        let (layers, stream) = (size.config.layers, size.tokens * size.config.hidden);
        self.inputs.resize_with(layers, Vec::new);
        self.inputs.iter_mut().for_each(|input| step(size, input, stream));
        self.kept.resize_with(layers.min(size.whole + 1), Kept::default);
        self.kept.iter_mut().for_each(|kept| kept.fit(size, step));
    }

    /// Values it then has.
    pub(super) fn len(size: &Size<'_>) -> usize {
        let layers = size.config.layers;
        layers * size.tokens * size.config.hidden + layers.min(size.whole + 1) * Kept::len(size)
    }

    /// Values there is room for.
    pub(super) fn held(&mut self) -> usize {
        let inputs: usize = self.inputs.iter().map(Vec::capacity).sum();
        inputs + self.kept.iter_mut().map(|kept| held(&kept.buffers())).sum::<usize>()
    }
}

impl Kept {
    const BUFFERS: usize = 10 + Module::COUNT;

    /// One of [`STEPS`].
    pub(super) fn fit(&mut self, size: &Size<'_>, step: Fit) {
        size.apply(step, self.buffers(), Self::lens(size));
    }

    /// Values of all of it.
    pub(super) fn len(size: &Size<'_>) -> usize {
        Self::lens(size).into_iter().sum()
    }

    fn buffers(&mut self) -> [&mut Vec<f32>; Self::BUFFERS] {
        let Self { q, k, v, raw: [raw_q, raw_k], attended, lse, middle, gate, up, small } = self;
        let [a, b, c, d, e, f, g] = small;
        [q, k, v, raw_q, raw_k, attended, lse, middle, gate, up, a, b, c, d, e, f, g]
    }

    /// The length of each, in the same order.
    fn lens(size: &Size<'_>) -> [usize; Self::BUFFERS] {
        let config = size.config;
        let (q, kv, raw) = (config.q_width(), config.kv_width(), usize::from(config.qk_norm));
        let [a, b, c, d, e, f, g] = size.ranks;
        [q, kv, kv, raw * q, raw * kv, q, config.heads, config.hidden, config.ffn, config.ffn, a, b, c, d, e, f, g]
            .map(|width| width * size.tokens)
    }
}

impl Scratch {
    /// One of [`STEPS`] for a forward pass, and if `back` for a backward pass.
    pub(super) fn fit(&mut self, size: &Size<'_>, back: bool, step: Fit) {
        size.apply(step, self.forward(), Self::forward_lens(size));
        if back {
            size.apply(step, self.backward(), Self::backward_lens(size));
        }
    }

    /// Values of a forward pass, and if `back` of a backward pass.
    pub(super) fn len(size: &Size<'_>, back: bool) -> usize {
        let forward: usize = Self::forward_lens(size).into_iter().sum();
        let backward: usize = Self::backward_lens(size).into_iter().sum();
        if back { forward + backward } else { forward }
    }

    /// Values there is room for.
    pub(super) fn held(&mut self) -> usize {
        held(&self.forward()) + held(&self.backward())
    }

    fn forward(&mut self) -> [&mut Vec<f32>; 5] {
        [&mut self.stream, &mut self.normed, &mut self.activated, &mut self.hidden, &mut self.last]
    }

    fn forward_lens(size: &Size<'_>) -> [usize; 5] {
        let (stream, last) = (size.tokens * size.config.hidden, size.targets * size.config.hidden);
        [stream, stream, size.tokens * size.config.ffn, last, last]
    }

    fn backward(&mut self) -> [&mut Vec<f32>; 11] {
        let Self { dnormed, dactivated, dattended, dq, dk, dv, draw, dsmall, dstream, dhidden, dlast, .. } = self;
        [dnormed, dactivated, dattended, dq, dk, dv, draw, dsmall, dstream, dhidden, dlast]
    }

    fn backward_lens(size: &Size<'_>) -> [usize; 11] {
        let Size { config, tokens, targets, .. } = *size;
        let (hidden, q, kv) = (config.hidden, tokens * config.q_width(), tokens * config.kv_width());
        let draw = if config.qk_norm { q } else { 0 };
        let small = tokens * size.ranks.into_iter().max().unwrap_or(0);
        let dstream = if size.again() { tokens * hidden } else { 0 };
        [tokens * hidden, tokens * config.ffn, q, q, kv, kv, draw, small, dstream, targets * hidden, targets * hidden]
    }
}

fn held<const N: usize>(buffers: &[&mut Vec<f32>; N]) -> usize {
    buffers.iter().map(|buffer| buffer.capacity()).sum()
}
