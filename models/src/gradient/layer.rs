//! One decoder layer, forward and backward.

use super::Module;
use super::attention::AttentionPlan;
use super::norm::Vector;
use super::projection::{ActivationRows, GradientBuffers, Output, Projection};
use super::rotation::{HeadRotation, bias};
use super::tape::{LayerActivations, PassScratch};
use crate::decoder::DecoderConfig;
use crate::kernel::derivative::silu_mul_back;
use crate::kernel::rope::Rope;
use crate::kernel::silu_mul;
use crate::kernel::team::Base;

/// Minimum number of tokens per thread that justifies a parallel region.
const GRAIN: usize = 8;

/// Weights of a layer, with their trained parts.
#[derive(Debug)]
pub(super) struct TrainableLayer {
    pub(super) attention_norm: Vector,
    /// Projections, indexed by [`Module`].
    pub(super) projections: [Projection; Module::COUNT],
    /// Biases of queries, keys and values (Qwen2). `None` if there are none.
    pub(super) biases: Option<[Vector; 3]>,
    /// Norms of each head of queries and of keys (Qwen3). `None` if there are none.
    pub(super) head_norms: Option<[Vector; 2]>,
    pub(super) ffn_norm: Vector,
}

/// Parameters shared by all layers of one pass.
pub(super) struct LayerPass<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) rope: &'a Rope,
    pub(super) plan: &'a AttentionPlan,
    /// Position of each token in its sequence.
    pub(super) positions: &'a [usize],
    pub(super) rows: ActivationRows<'a>,
}

impl TrainableLayer {
    /// Updates the weights with changed values.
    pub(super) fn repack(&mut self, values: &[f32]) {
        let mut scratch = Vec::new();
        self.projections.iter_mut().for_each(|projection| projection.repack(values, &mut scratch));
        let vectors = [&mut self.attention_norm, &mut self.ffn_norm].into_iter();
        let vectors = vectors.chain(self.biases.iter_mut().flatten()).chain(self.head_norms.iter_mut().flatten());
        vectors.for_each(|vector| vector.repack(values));
    }

    /// Adapter rank of each module; 0 without an adapter.
    pub(super) fn ranks(&self) -> [usize; Module::COUNT] {
        self.projections.each_ref().map(Projection::rank)
    }

    /// Size of the packed weights, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.projections.iter().map(Projection::bytes).sum()
    }

    fn at(&self, module: Module) -> &Projection {
        &self.projections[module as usize]
    }

    fn turn(&self, side: usize, width: usize) -> HeadRotation<'_> {
        HeadRotation {
            bias: self.biases.as_ref().map(|biases| &biases[side]),
            norm: self.head_norms.as_ref().map(|norms| &norms[side]),
            width,
        }
    }

    /// Passes `scratch.stream` through the layer, in place. `kept` must have the layer's size.
    pub(super) fn forward(&self, pass: &LayerPass<'_>, kept: &mut LayerActivations, scratch: &mut PassScratch) {
        self.forward_to_gate(pass, kept, scratch);
        let PassScratch { stream, activated, .. } = scratch;
        activate(pass, kept, activated);
        let small = &mut kept.small[Module::DownProj as usize];
        self.at(Module::DownProj).forward(pass.rows, activated, small, Output::Add(stream));
    }

    /// Recomputes the activations of the forward pass from the layer's input in `scratch.stream`. Leaves an
    /// intermediate value in `scratch.stream`.
    pub(super) fn forward_again(&self, pass: &LayerPass<'_>, kept: &mut LayerActivations, scratch: &mut PassScratch) {
        self.forward_to_gate(pass, kept, scratch);
        let down = self.at(Module::DownProj);
        if down.rank() > 0 {
            activate(pass, kept, &mut scratch.activated);
            down.shrink(pass.rows, &scratch.activated, &mut kept.small[Module::DownProj as usize]);
        }
    }

    /// Runs the forward pass up to the gate and up projections.
    fn forward_to_gate(&self, pass: &LayerPass<'_>, kept: &mut LayerActivations, scratch: &mut PassScratch) {
        let config = pass.config;
        let rows = pass.rows;
        let PassScratch { stream, normed, .. } = scratch;
        self.attention_norm.normalize(rows.team, stream, config.rms_eps, normed);
        for (module, y) in [(Module::QProj, &mut kept.q), (Module::KProj, &mut kept.k), (Module::VProj, &mut kept.v)] {
            self.at(module).forward(rows, normed, &mut kept.small[module as usize], Output::Set(y));
        }
        let [raw_q, raw_k] = &mut kept.raw;
        self.turn(0, config.q_width()).forward(pass, &mut kept.q, raw_q);
        self.turn(1, config.kv_width()).forward(pass, &mut kept.k, raw_k);
        bias(pass, self.biases.as_ref().map(|biases| &biases[2]), config.kv_width(), &mut kept.v);
        pass.plan.forward(rows.team, &kept.q, &kept.k, &kept.v, &mut kept.attended, &mut kept.lse);
        self.at(Module::OProj).forward(
            rows,
            &kept.attended,
            &mut kept.small[Module::OProj as usize],
            Output::Add(stream),
        );
        kept.middle.copy_from_slice(stream);
        self.ffn_norm.normalize(rows.team, stream, config.rms_eps, normed);
        for (module, y) in [(Module::GateProj, &mut kept.gate), (Module::UpProj, &mut kept.up)] {
            self.at(module).forward(rows, normed, &mut kept.small[module as usize], Output::Set(y));
        }
    }

    /// Replaces the gradient of the layer's output in `scratch.stream` by that of its input, and adds the trained
    /// weights' gradients to `gradients`. Without `further`, the input's gradient is not needed and stays
    /// unfinished.
    pub(super) fn backward(
        &self,
        pass: &LayerPass<'_>,
        input: &[f32],
        kept: &mut LayerActivations,
        scratch: &mut PassScratch,
        gradients: &mut [f32],
        further: bool,
    ) {
        self.backward_feed_forward(pass, kept, scratch, gradients);
        self.backward_attention(pass, input, kept, scratch, gradients, further);
    }

    /// Computes the feed-forward part of the backward pass.
    fn backward_feed_forward(
        &self,
        pass: &LayerPass<'_>,
        kept: &mut LayerActivations,
        scratch: &mut PassScratch,
        gradients: &mut [f32],
    ) {
        let config = pass.config;
        let rows = pass.rows;
        let PassScratch { stream, normed, dnormed, activated, dactivated, dsmall, .. } = scratch;
        let mut learning = GradientBuffers { gradients, small: dsmall };
        let down = self.at(Module::DownProj);
        if down.learns() {
            activate(pass, kept, activated);
        }
        let small = &kept.small[Module::DownProj as usize];
        down.backward(rows, stream, activated, small, Output::Set(dactivated), &mut learning);
        backward_gate(pass, kept, dactivated);
        let [gate, up] = [Module::GateProj, Module::UpProj].map(|module| self.at(module));
        if gate.learns() || up.learns() {
            self.ffn_norm.normalize(rows.team, &kept.middle, config.rms_eps, normed);
        }
        let small = |module: Module| &kept.small[module as usize];
        gate.backward(rows, &kept.gate, normed, small(Module::GateProj), Output::Set(dnormed), &mut learning);
        up.backward(rows, &kept.up, normed, small(Module::UpProj), Output::Add(dnormed), &mut learning);
        self.ffn_norm.back(rows.team, &kept.middle, config.rms_eps, dnormed, stream, learning.gradients);
    }

    /// Computes the attention part of the backward pass.
    fn backward_attention(
        &self,
        pass: &LayerPass<'_>,
        input: &[f32],
        kept: &LayerActivations,
        scratch: &mut PassScratch,
        gradients: &mut [f32],
        further: bool,
    ) {
        let config = pass.config;
        let rows = pass.rows;
        let PassScratch { stream, normed, dnormed, dattended, dq, dk, dv, draw, dsmall, .. } = scratch;
        let mut learning = GradientBuffers { gradients, small: dsmall };
        let small = |module: Module| &kept.small[module as usize];
        let o = self.at(Module::OProj);
        o.backward(rows, stream, &kept.attended, small(Module::OProj), Output::Set(dattended), &mut learning);
        pass.plan.backward(rows.team, &kept.q, &kept.k, &kept.v, &kept.attended, &kept.lse, dattended, dq, dk, dv);
        self.turn(0, config.q_width()).backward(pass, &kept.raw[0], dq, draw, learning.gradients);
        self.turn(1, config.kv_width()).backward(pass, &kept.raw[1], dk, draw, learning.gradients);
        if let Some(biases) = &self.biases {
            biases[2].learn_sum(dv, learning.gradients);
        }
        let sides = [(Module::QProj, dq), (Module::KProj, dk), (Module::VProj, dv)];
        if sides.iter().any(|(module, _)| self.at(*module).learns()) {
            self.attention_norm.normalize(rows.team, input, config.rms_eps, normed);
        }
        for (index, (module, dy)) in sides.into_iter().enumerate() {
            let into = match index {
                _ if !further => Output::Nowhere,
                0 => Output::Set(&mut *dnormed),
                _ => Output::Add(&mut *dnormed),
            };
            self.at(module).backward(rows, dy, normed, small(module), into, &mut learning);
        }
        if further {
            self.attention_norm.back(rows.team, input, config.rms_eps, dnormed, stream, learning.gradients);
        }
    }
}

/// Computes `silu(gate) · up` of every token.
fn activate(pass: &LayerPass<'_>, kept: &LayerActivations, activated: &mut [f32]) {
    pass.rows.team.rows(activated, pass.config.ffn, GRAIN, &|first, share| {
        let range = first * pass.config.ffn..first * pass.config.ffn + share.len();
        share.copy_from_slice(&kept.gate[range.clone()]);
        silu_mul(share, &kept.up[range]);
    });
}

/// Replaces the gate and up activations by their gradients.
fn backward_gate(pass: &LayerPass<'_>, kept: &mut LayerActivations, dactivated: &[f32]) {
    assert_eq!(kept.up.len(), dactivated.len(), "a gradient for each value");
    assert_eq!(kept.gate.len(), kept.up.len(), "a gate for each value");
    let up = Base(kept.up.as_mut_ptr());
    pass.rows.team.rows(&mut kept.gate, pass.config.ffn, GRAIN, &|first, gate| {
        let first = first * pass.config.ffn;
        // SAFETY: `up` has the length of the gate, as asserted; the shares of that length are disjoint and inside
        // it.
        let up = unsafe { std::slice::from_raw_parts_mut(up.at(first), gate.len()) };
        silu_mul_back(gate, up, &dactivated[first..][..gate.len()]);
    });
}
