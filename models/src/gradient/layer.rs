//! One decoder layer, forward and backward.

use super::Module;
use super::attention::AttentionPlan;
use super::experts::{ExpertBuffers, ExpertGradients, FrozenExperts};
use super::gate::GatedActivation;
use super::norm::Vector;
use super::projection::{ActivationRows, GradientBuffers, Output, Projection};
use super::rotation::{HeadRotation, bias};
use super::tape::{LayerActivations, PassScratch};
use crate::architecture::LayerRotary;
use crate::decoder::{DecoderConfig, Ropes};
use crate::kernel::attention::ScoreRule;
use crate::kernel::{add, axpy};

/// Weights of a layer, with their trained parts.
#[derive(Debug)]
pub(super) struct TrainableLayer {
    pub(super) attention_norms: TrainableNorms,
    /// Projections, indexed by [`Module`]. Those of the feed-forward block are empty if there are experts.
    pub(super) projections: [Projection; Module::COUNT],
    /// Experts in place of the feed-forward block. `None` if there are none.
    pub(super) experts: Option<Box<FrozenExperts>>,
    /// Biases of queries, keys and values (Qwen2). `None` if there are none.
    pub(super) biases: Option<[Vector; 3]>,
    /// Norms of queries and of keys, as wide as one head or as all heads. `None` if there are none.
    pub(super) qk_norms: Option<[Vector; 2]>,
    pub(super) ffn_norms: TrainableNorms,
    /// Rotation of queries and keys.
    pub(super) rotary: LayerRotary,
    /// Scale, window and limit of the scores.
    pub(super) rule: ScoreRule,
}

/// Norms on the input and on the output of a block. `None` where there is none.
#[derive(Debug)]
pub(super) struct TrainableNorms {
    pub(super) before: Option<Vector>,
    pub(super) after: Option<Vector>,
}

/// Parameters shared by all layers of one pass.
pub(super) struct LayerPass<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) ropes: &'a Ropes,
    pub(super) plan: &'a AttentionPlan,
    /// Position of each token in its sequence.
    pub(super) positions: &'a [usize],
    pub(super) rows: ActivationRows<'a>,
}

impl LayerPass<'_> {
    /// Soft limit of the logits.
    pub(super) fn cap(&self) -> Option<f32> {
        self.config.architecture.logit_cap
    }
}

impl TrainableLayer {
    /// Updates the weights with changed values.
    pub(super) fn repack(&mut self, values: &[f32]) {
        let mut scratch = Vec::new();
        self.projections.iter_mut().for_each(|projection| projection.repack(values, &mut scratch));
        let norms = [&mut self.attention_norms, &mut self.ffn_norms].into_iter();
        let vectors = norms.flat_map(|norms| [&mut norms.before, &mut norms.after].into_iter().flatten());
        let vectors = vectors.chain(self.biases.iter_mut().flatten()).chain(self.qk_norms.iter_mut().flatten());
        vectors.for_each(|vector| vector.repack(values));
    }

    /// Adapter rank of each module; 0 without an adapter.
    pub(super) fn ranks(&self) -> [usize; Module::COUNT] {
        self.projections.each_ref().map(Projection::rank)
    }

    /// Size of the packed weights, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let experts = self.experts.as_ref().map_or(0, |experts| experts.bytes());
        experts + self.projections.iter().map(Projection::bytes).sum::<usize>()
    }

    fn at(&self, module: Module) -> &Projection {
        &self.projections[module as usize]
    }

    fn turn<'a>(&'a self, pass: &LayerPass<'a>, side: usize, width: usize) -> HeadRotation<'a> {
        HeadRotation {
            bias: self.biases.as_ref().map(|biases| &biases[side]),
            norm: self.qk_norms.as_ref().map(|norms| &norms[side]),
            rope: pass.ropes.of(self.rotary),
            width,
        }
    }

    /// Passes `scratch.stream` through the layer, in place. `kept` must have the layer's size.
    pub(super) fn forward(&self, pass: &LayerPass<'_>, kept: &mut LayerActivations, scratch: &mut PassScratch) {
        self.forward_attention(pass, kept, scratch);
        if let Some(experts) = &self.experts {
            return self.forward_experts(pass, experts, scratch);
        }
        self.forward_gate(pass, kept, scratch);
        let PassScratch { stream, activated, branch, .. } = scratch;
        let activated = activate(pass, kept, activated);
        let small = &mut kept.small[Module::DownProj as usize];
        let block = BlockOutput { projection: self.at(Module::DownProj), norm: self.ffn_norms.after.as_ref() };
        block.forward(pass, activated, small, &mut kept.ffn_out, branch, stream);
    }

    /// Recomputes the activations of the forward pass from the layer's input in `scratch.stream`. Leaves an
    /// intermediate value in `scratch.stream`.
    pub(super) fn forward_again(&self, pass: &LayerPass<'_>, kept: &mut LayerActivations, scratch: &mut PassScratch) {
        self.forward_attention(pass, kept, scratch);
        if self.experts.is_some() {
            return;
        }
        self.forward_gate(pass, kept, scratch);
        let down = self.at(Module::DownProj);
        if self.ffn_norms.after.is_some() {
            // The backward pass of the norm needs the output of the block.
            let activated = activate(pass, kept, &mut scratch.activated);
            let small = &mut kept.small[Module::DownProj as usize];
            down.forward(pass.rows, activated, small, Output::Set(&mut kept.ffn_out));
        } else if down.rank() > 0 {
            let activated = activate(pass, kept, &mut scratch.activated);
            down.shrink(pass.rows, activated, &mut kept.small[Module::DownProj as usize]);
        }
    }

    /// Runs the forward pass up to the input of the feed-forward block, before its norm.
    fn forward_attention(&self, pass: &LayerPass<'_>, kept: &mut LayerActivations, scratch: &mut PassScratch) {
        let config = pass.config;
        let rows = pass.rows;
        let PassScratch { stream, normed, branch, .. } = scratch;
        self.attention_norms.input(pass, stream, normed);
        for (module, y) in [(Module::QProj, &mut kept.q), (Module::KProj, &mut kept.k), (Module::VProj, &mut kept.v)] {
            self.at(module).forward(rows, normed, &mut kept.small[module as usize], Output::Set(y));
        }
        let [raw_q, raw_k] = &mut kept.raw;
        self.turn(pass, 0, config.q_width()).forward(pass, &mut kept.q, raw_q);
        self.turn(pass, 1, config.kv_width()).forward(pass, &mut kept.k, raw_k);
        bias(pass, self.biases.as_ref().map(|biases| &biases[2]), config.kv_width(), &mut kept.v);
        pass.plan.forward(rows.team, self.rule, &kept.q, &kept.k, &kept.v, &mut kept.attended, &mut kept.lse);
        let small = &mut kept.small[Module::OProj as usize];
        let block = BlockOutput { projection: self.at(Module::OProj), norm: self.attention_norms.after.as_ref() };
        block.forward(pass, &kept.attended, small, &mut kept.attention_out, branch, stream);
        kept.middle.copy_from_slice(stream);
    }

    /// Computes the gate and up projections.
    fn forward_gate(&self, pass: &LayerPass<'_>, kept: &mut LayerActivations, scratch: &mut PassScratch) {
        let PassScratch { stream, normed, .. } = scratch;
        self.ffn_norms.input(pass, stream, normed);
        for (module, y) in [(Module::GateProj, &mut kept.gate), (Module::UpProj, &mut kept.up)] {
            self.at(module).forward(pass.rows, normed, &mut kept.small[module as usize], Output::Set(y));
        }
    }

    /// Adds the output of the experts to the residual stream.
    fn forward_experts(&self, pass: &LayerPass<'_>, experts: &FrozenExperts, scratch: &mut PassScratch) {
        let PassScratch { stream, normed, activated, branch, routes, rows, expert_gate, expert_up, .. } = scratch;
        self.ffn_norms.input(pass, stream, normed);
        let mut buffers = ExpertBuffers {
            team: pass.rows.team,
            activation: pass.config.architecture.activation,
            routes,
            rows,
            gate: expert_gate,
            up: expert_up,
            activated,
        };
        experts.forward(&mut buffers, normed, branch);
        add(stream, branch);
    }

    /// Computes the backward pass of the experts and of the norm before them.
    fn backward_experts(
        &self,
        pass: &LayerPass<'_>,
        experts: &FrozenExperts,
        middle: &[f32],
        scratch: &mut PassScratch,
        gradients: &mut [f32],
    ) {
        let PassScratch { stream, normed, dnormed, activated, dactivated, branch, .. } = scratch;
        let PassScratch { routes, rows, expert_gate, expert_up, dprobabilities, dlogits, .. } = scratch;
        self.ffn_norms.input(pass, middle, normed);
        let mut buffers = ExpertBuffers {
            team: pass.rows.team,
            activation: pass.config.architecture.activation,
            routes,
            rows,
            gate: expert_gate,
            up: expert_up,
            activated,
        };
        let mut further = ExpertGradients { outputs: branch, dactivated, dprobabilities, dlogits };
        experts.backward(&mut buffers, &mut further, normed, stream, dnormed);
        self.ffn_norms.back(pass, middle, dnormed, stream, gradients);
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
        match &self.experts {
            Some(experts) => self.backward_experts(pass, experts, &kept.middle, scratch, gradients),
            None => self.backward_feed_forward(pass, kept, scratch, gradients),
        }
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
        let rows = pass.rows;
        let PassScratch { stream, normed, dnormed, activated, dactivated, branch, dsmall, .. } = scratch;
        let mut learning = GradientBuffers { gradients, small: dsmall };
        let down = self.at(Module::DownProj);
        let len = pass.rows.count * pass.config.ffn;
        let activated: &[f32] = if down.learns() { activate(pass, kept, activated) } else { &[] };
        let dactivated = &mut dactivated[..len];
        let small = &kept.small[Module::DownProj as usize];
        let block = BlockOutput { projection: down, norm: self.ffn_norms.after.as_ref() };
        let dout = block.gradient(pass, stream, &kept.ffn_out, branch, learning.gradients);
        down.backward(rows, dout, activated, small, Output::Set(dactivated), &mut learning);
        activation(pass).backward(&mut kept.gate, &mut kept.up, dactivated);
        let [gate, up] = [Module::GateProj, Module::UpProj].map(|module| self.at(module));
        if gate.learns() || up.learns() {
            self.ffn_norms.input(pass, &kept.middle, normed);
        }
        let small = |module: Module| &kept.small[module as usize];
        gate.backward(rows, &kept.gate, normed, small(Module::GateProj), Output::Set(dnormed), &mut learning);
        up.backward(rows, &kept.up, normed, small(Module::UpProj), Output::Add(dnormed), &mut learning);
        self.ffn_norms.back(pass, &kept.middle, dnormed, stream, learning.gradients);
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
        let PassScratch { stream, normed, dnormed, dattended, dq, dk, dv, draw, branch, dsmall, .. } = scratch;
        let mut learning = GradientBuffers { gradients, small: dsmall };
        let small = |module: Module| &kept.small[module as usize];
        let o = self.at(Module::OProj);
        let block = BlockOutput { projection: o, norm: self.attention_norms.after.as_ref() };
        let dout = block.gradient(pass, stream, &kept.attention_out, branch, learning.gradients);
        o.backward(rows, dout, &kept.attended, small(Module::OProj), Output::Set(dattended), &mut learning);
        let LayerActivations { q, k, v, attended, lse, .. } = kept;
        pass.plan.backward(rows.team, self.rule, q, k, v, attended, lse, dattended, dq, dk, dv);
        self.turn(pass, 0, config.q_width()).backward(pass, &kept.raw[0], dq, draw, learning.gradients);
        self.turn(pass, 1, config.kv_width()).backward(pass, &kept.raw[1], dk, draw, learning.gradients);
        if let Some(biases) = &self.biases {
            biases[2].learn_sum(dv, learning.gradients);
        }
        let sides = [(Module::QProj, dq), (Module::KProj, dk), (Module::VProj, dv)];
        if sides.iter().any(|(module, _)| self.at(*module).learns()) {
            self.attention_norms.input(pass, input, normed);
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
            self.attention_norms.back(pass, input, dnormed, stream, learning.gradients);
        }
    }
}

impl TrainableNorms {
    /// Computes the input of the block from the residual stream.
    fn input(&self, pass: &LayerPass<'_>, stream: &[f32], normed: &mut [f32]) {
        match &self.before {
            Some(norm) => norm.normalize(pass.rows.team, stream, pass.config.rms_eps, normed),
            None => normed.copy_from_slice(stream),
        }
    }

    /// Adds the gradient of the residual stream to `dstream`, given that of the block's input.
    fn back(&self, pass: &LayerPass<'_>, stream: &[f32], dinput: &[f32], dstream: &mut [f32], gradients: &mut [f32]) {
        match &self.before {
            Some(norm) => norm.back(pass.rows.team, stream, pass.config.rms_eps, dinput, dstream, gradients),
            None => add(dstream, dinput),
        }
    }
}

/// Last projection of a block and the norm on its output.
struct BlockOutput<'a> {
    projection: &'a Projection,
    norm: Option<&'a Vector>,
}

impl BlockOutput<'_> {
    /// Adds the output for the input `x` to the residual stream. `out` receives the input of the norm, if there is one,
    /// and `small` the input of the adapter's second matrix.
    fn forward(
        &self,
        pass: &LayerPass<'_>,
        x: &[f32],
        small: &mut [f32],
        out: &mut [f32],
        branch: &mut [f32],
        stream: &mut [f32],
    ) {
        let factor = pass.config.architecture.residual_scale;
        match self.norm {
            Some(norm) => {
                self.projection.forward(pass.rows, x, small, Output::Set(out));
                norm.normalize(pass.rows.team, out, pass.config.rms_eps, branch);
                add(stream, branch);
            }
            None if factor != 1.0 => {
                self.projection.forward(pass.rows, x, small, Output::Set(branch));
                axpy(stream, factor, branch);
            }
            None => self.projection.forward(pass.rows, x, small, Output::Add(stream)),
        }
    }

    /// Returns the gradient of the projection's output, given that of the residual stream.
    fn gradient<'a>(
        &self,
        pass: &LayerPass<'_>,
        dstream: &'a [f32],
        out: &[f32],
        branch: &'a mut [f32],
        gradients: &mut [f32],
    ) -> &'a [f32] {
        let factor = pass.config.architecture.residual_scale;
        match self.norm {
            Some(norm) => {
                branch.fill(0.0);
                norm.back(pass.rows.team, out, pass.config.rms_eps, dstream, branch, gradients);
                branch
            }
            None if factor != 1.0 => {
                branch.fill(0.0);
                axpy(branch, factor, dstream);
                branch
            }
            None => dstream,
        }
    }
}

/// Activation of the ordinary feed-forward block.
fn activation<'a>(pass: &LayerPass<'a>) -> GatedActivation<'a> {
    GatedActivation { team: pass.rows.team, activation: pass.config.architecture.activation, width: pass.config.ffn }
}

/// Computes the activated gate times `up` of every token.
fn activate<'a>(pass: &LayerPass<'_>, kept: &LayerActivations, activated: &'a mut [f32]) -> &'a [f32] {
    let len = pass.rows.count * pass.config.ffn;
    let activated = &mut activated[..len];
    activation(pass).forward(&kept.gate, &kept.up, activated);
    activated
}
