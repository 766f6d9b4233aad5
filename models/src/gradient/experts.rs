//! Frozen experts of a layer, forward and backward.
//!
//! The experts are not trained, but the gradient passes through the chosen experts and through the probabilities of the
//! router, as in `transformers`. The backward pass computes each expert again from the block's input.

use super::gate::GatedActivation;
use crate::architecture::{Activation, Experts};
use crate::decoder::ExpertRoutes;
use crate::decoder::tensor::{matrix, shared_factor, shared_gate};
use crate::kernel::directed::Direction::{Backward, Forward};
use crate::kernel::two_way::TwoWayMatrix;
use crate::kernel::{Team, axpy, dot};
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Minimum number of rows per thread that justifies a parallel region.
const GRAIN: usize = 8;

/// Weights of the experts of a layer.
#[derive(Debug)]
pub(super) struct FrozenExperts {
    router: TwoWayMatrix,
    blocks: Vec<FrozenBlock>,
    /// Expert that all tokens pass through, with the vector of its gate.
    shared: Option<(FrozenBlock, Vec<f32>)>,
    normalized: bool,
}

/// Weights of one expert.
#[derive(Debug)]
struct FrozenBlock {
    gate: TwoWayMatrix,
    up: TwoWayMatrix,
    down: TwoWayMatrix,
}

/// Working memory for rows of experts, with room for all tokens.
pub(super) struct ExpertBuffers<'a> {
    pub(super) team: &'a Team,
    pub(super) activation: Activation,
    pub(super) routes: &'a mut ExpertRoutes,
    /// Inputs of an expert, then its outputs or, in the backward pass, gradients.
    pub(super) rows: &'a mut [f32],
    pub(super) gate: &'a mut [f32],
    pub(super) up: &'a mut [f32],
    pub(super) activated: &'a mut [f32],
}

/// Further working memory of the backward pass.
pub(super) struct ExpertGradients<'a> {
    /// Outputs of an expert.
    pub(super) outputs: &'a mut [f32],
    pub(super) dactivated: &'a mut [f32],
    /// Gradients of the factors on the experts' outputs, in the order of the grouped rows.
    pub(super) dprobabilities: &'a mut [f32],
    /// Gradients of the router's logits.
    pub(super) dlogits: &'a mut [f32],
}

impl FrozenExperts {
    /// Loads the experts with names below `path`.
    pub(super) fn load(
        weights: &Weights,
        experts: &Experts,
        arithmetic: Arithmetic,
        path: &str,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let router = matrix(weights, &format!("{path}.gate.weight"), experts.count, hidden)?;
        let block =
            |name: &str, width| FrozenBlock::load(weights, arithmetic, &format!("{path}.{name}"), [width, hidden]);
        let blocks = (0..experts.count).map(|index| block(&format!("experts.{index}"), experts.width));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        let shared = match experts.shared {
            Some(width) => {
                let gate = shared_gate(weights, &format!("{path}.shared_expert_gate.weight"), hidden)?;
                Some((block("shared_expert", width)?, gate))
            }
            None => None,
        };
        let router = TwoWayMatrix::new(router, Arithmetic::F32);
        Ok(Self { router, blocks, shared, normalized: experts.normalized })
    }

    /// Size of the packed weights, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let shared = self.shared.as_ref().map_or(0, |(block, _)| block.bytes());
        self.router.bytes() + shared + self.blocks.iter().map(FrozenBlock::bytes).sum::<usize>()
    }

    /// Computes the output of the block for `input`.
    pub(super) fn forward(&self, buffers: &mut ExpertBuffers<'_>, input: &[f32], output: &mut [f32]) {
        let hidden = self.router.inn();
        self.route(buffers, input);
        output.fill(0.0);
        for (expert, block) in self.blocks.iter().enumerate() {
            let count = buffers.gather(expert, input, hidden);
            if count == 0 {
                continue;
            }
            block.in_place(buffers, count);
            let ExpertBuffers { team, routes, rows, .. } = buffers;
            routes.scatter(team, expert, output, hidden, &|row, probability, output| {
                axpy(output, probability, &rows[row * hidden..][..hidden]);
            });
        }
        if let Some((block, gate)) = &self.shared {
            buffers.rows[..input.len()].copy_from_slice(input);
            block.in_place(buffers, input.len() / hidden);
            let ExpertBuffers { team, rows, .. } = buffers;
            team.rows(output, hidden, GRAIN, &|first, share| {
                let rows = rows[first * hidden..].chunks_exact(hidden);
                let rows = rows.zip(input[first * hidden..].chunks_exact(hidden));
                for (output, (row, input)) in share.chunks_exact_mut(hidden).zip(rows) {
                    axpy(output, shared_factor(gate, input), row);
                }
            });
        }
    }

    /// Writes the gradient of `input` to `dinput`, given that of the output.
    pub(super) fn backward(
        &self,
        buffers: &mut ExpertBuffers<'_>,
        gradients: &mut ExpertGradients<'_>,
        input: &[f32],
        dout: &[f32],
        dinput: &mut [f32],
    ) {
        let hidden = self.router.inn();
        let tokens = input.len() / hidden;
        self.route(buffers, input);
        dinput.fill(0.0);
        for (expert, block) in self.blocks.iter().enumerate() {
            let count = buffers.gather(expert, input, hidden);
            if count == 0 {
                continue;
            }
            block.outputs(buffers, &mut gradients.outputs[..count * hidden], count);
            buffers.backward_factors(gradients, expert, dout, hidden);
            block.backward(buffers, gradients, count, hidden);
            let ExpertBuffers { team, routes, rows, .. } = buffers;
            routes.scatter(team, expert, dinput, hidden, &|row, _, dinput| {
                axpy(dinput, 1.0, &rows[row * hidden..][..hidden]);
            });
        }
        let ExpertBuffers { team, routes, .. } = buffers;
        let ExpertGradients { dprobabilities, dlogits, .. } = gradients;
        let experts = self.blocks.len();
        team.rows(dlogits, experts, GRAIN, &|first, share| {
            for (token, dlogits) in (first..).zip(share.chunks_exact_mut(experts)) {
                self.backward_router(routes, token, dprobabilities, dlogits);
            }
        });
        self.router.matmul_add(team, Backward, dlogits, tokens, dinput);
        self.backward_shared(buffers, gradients, input, dout, dinput);
    }

    /// Adds the gradient of `input` that flows through the shared expert to `dinput`.
    fn backward_shared(
        &self,
        buffers: &mut ExpertBuffers<'_>,
        gradients: &mut ExpertGradients<'_>,
        input: &[f32],
        dout: &[f32],
        dinput: &mut [f32],
    ) {
        let Some((block, gate)) = &self.shared else { return };
        let hidden = self.router.inn();
        let count = input.len() / hidden;
        buffers.rows[..input.len()].copy_from_slice(input);
        block.outputs(buffers, &mut gradients.outputs[..input.len()], count);
        let ExpertBuffers { team, rows, .. } = buffers;
        let outputs = &*gradients.outputs;
        team.rows(dinput, hidden, GRAIN, &|first, share| {
            for (token, dinput) in (first..).zip(share.chunks_exact_mut(hidden)) {
                let range = token * hidden..(token + 1) * hidden;
                let factor = shared_factor(gate, &input[range.clone()]);
                axpy(dinput, dot(&dout[range.clone()], &outputs[range]) * factor * (1.0 - factor), gate);
            }
        });
        team.rows(&mut rows[..input.len()], hidden, GRAIN, &|first, share| {
            for (token, row) in (first..).zip(share.chunks_exact_mut(hidden)) {
                let range = token * hidden..(token + 1) * hidden;
                row.fill(0.0);
                axpy(row, shared_factor(gate, &input[range.clone()]), &dout[range]);
            }
        });
        block.backward(buffers, gradients, count, hidden);
        let ExpertBuffers { team, rows, .. } = buffers;
        team.rows(dinput, hidden, GRAIN, &|first, share| {
            axpy(share, 1.0, &rows[first * hidden..][..share.len()]);
        });
    }

    /// Computes the gradients of a token's logits, given those of the factors of its experts.
    fn backward_router(&self, routes: &ExpertRoutes, token: usize, dprobabilities: &[f32], dlogits: &mut [f32]) {
        let mean: f32 = routes.of_token(token).map(|(row, probability)| probability * dprobabilities[row]).sum();
        // If the factors sum to 1, the logits of other experts have no effect on the output.
        let others = if self.normalized { 0.0 } else { -mean };
        let probabilities = routes.probabilities_of(token);
        dlogits.iter_mut().zip(probabilities).for_each(|(dlogit, probability)| *dlogit = others * probability);
        for (expert, row, probability) in routes.experts_of(token) {
            dlogits[expert] = probability * (dprobabilities[row] - mean);
        }
    }

    fn route(&self, buffers: &mut ExpertBuffers<'_>, input: &[f32]) {
        let tokens = input.len() / self.router.inn();
        self.router.matmul(buffers.team, Forward, input, tokens, buffers.routes.logits());
        buffers.routes.choose(buffers.team, self.normalized);
    }
}

impl FrozenBlock {
    fn load(
        weights: &Weights,
        arithmetic: Arithmetic,
        path: &str,
        [width, hidden]: [usize; 2],
    ) -> Result<Self, ModelError> {
        let pair = |part: &str, [out, inn]: [usize; 2]| {
            let weight = matrix(weights, &format!("{path}.{part}_proj.weight"), out, inn)?;
            Ok::<_, ModelError>(TwoWayMatrix::new(weight, arithmetic))
        };
        let wide = [width, hidden];
        Ok(Self { gate: pair("gate", wide)?, up: pair("up", wide)?, down: pair("down", [hidden, width])? })
    }

    fn bytes(&self) -> usize {
        [&self.gate, &self.up, &self.down].into_iter().map(TwoWayMatrix::bytes).sum()
    }

    fn width(&self) -> usize {
        self.down.inn()
    }

    /// Computes the activated gate times the up projection for `count` rows.
    fn forward(&self, buffers: &mut ExpertBuffers<'_>, count: usize) {
        let ExpertBuffers { team, rows, gate, up, activated, activation, .. } = buffers;
        let width = self.width();
        let rows = &rows[..count * self.gate.inn()];
        let [gate, up, activated] = [gate, up, activated].map(|buffer| &mut buffer[..count * width]);
        self.gate.matmul(team, Forward, rows, count, gate);
        self.up.matmul(team, Forward, rows, count, up);
        GatedActivation { team, activation: *activation, width }.forward(gate, up, activated);
    }

    /// Replaces `count` rows by the outputs of the expert.
    fn in_place(&self, buffers: &mut ExpertBuffers<'_>, count: usize) {
        self.forward(buffers, count);
        let ExpertBuffers { team, rows, activated, .. } = buffers;
        let rows = &mut rows[..count * self.down.out()];
        self.down.matmul(team, Forward, &activated[..count * self.width()], count, rows);
    }

    /// Computes the outputs of `count` rows and leaves the rows as they are.
    fn outputs(&self, buffers: &mut ExpertBuffers<'_>, outputs: &mut [f32], count: usize) {
        self.forward(buffers, count);
        self.down.matmul(buffers.team, Forward, &buffers.activated[..count * self.width()], count, outputs);
    }

    /// Replaces the gradients of the outputs of `count` rows by those of their inputs.
    fn backward(
        &self,
        buffers: &mut ExpertBuffers<'_>,
        gradients: &mut ExpertGradients<'_>,
        count: usize,
        hidden: usize,
    ) {
        let ExpertBuffers { team, rows, gate, up, activation, .. } = buffers;
        let width = self.width();
        let rows = &mut rows[..count * hidden];
        let dactivated = &mut gradients.dactivated[..count * width];
        let [gate, up] = [gate, up].map(|buffer| &mut buffer[..count * width]);
        self.down.matmul(team, Backward, rows, count, dactivated);
        GatedActivation { team, activation: *activation, width }.backward(gate, up, dactivated);
        self.gate.matmul(team, Backward, gate, count, rows);
        self.up.matmul_add(team, Backward, up, count, rows);
    }
}

impl ExpertBuffers<'_> {
    /// Copies the inputs of an expert to the rows, and returns their number.
    fn gather(&mut self, expert: usize, input: &[f32], hidden: usize) -> usize {
        let range = self.routes.rows_of(expert);
        let count = range.len();
        self.routes.gather(self.team, range, input, &mut self.rows[..count * hidden], hidden);
        count
    }

    /// Computes the gradients of the factors on an expert's outputs, and replaces the rows by the gradients of these
    /// outputs.
    fn backward_factors(&mut self, gradients: &mut ExpertGradients<'_>, expert: usize, dout: &[f32], hidden: usize) {
        let Self { team, routes, rows, .. } = self;
        let ExpertGradients { outputs, dprobabilities, .. } = gradients;
        let (tokens, probabilities) = routes.choices_of(expert);
        let dout = |row: usize| &dout[tokens[row] * hidden..][..hidden];
        team.rows(&mut dprobabilities[routes.rows_of(expert)], 1, GRAIN, &|first, share| {
            for (row, dprobability) in (first..).zip(share) {
                *dprobability = dot(dout(row), &outputs[row * hidden..][..hidden]);
            }
        });
        team.rows(&mut rows[..tokens.len() * hidden], hidden, GRAIN, &|first, share| {
            for (row, values) in (first..).zip(share.chunks_exact_mut(hidden)) {
                values.fill(0.0);
                axpy(values, probabilities[row], dout(row));
            }
        });
    }
}
