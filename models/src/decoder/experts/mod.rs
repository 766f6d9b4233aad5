//! Experts of one layer: a router, and feed-forward blocks. Each token passes through a few of them.
//!
//! The tokens of a step are grouped by expert, so each expert's matrices are read once per step. A token adds up
//! the outputs of its experts in the order of their indices, whatever the batch.
//!
//! `routes`: the choice of experts, and the grouping of tokens by expert

mod routes;

pub(crate) use routes::ExpertRoutes;

use super::feed_forward::{Gate, GatedBlock};
use super::step_clock::{StepClock, StepPhase};
use super::tensor::{matrix, shared_factor, shared_gate};
use crate::architecture::Experts;
use crate::kernel::{Packed, Team, axpy, matmul};
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Minimum number of tokens per thread that justifies a parallel region.
const GRAIN: usize = 4;
/// Number of experts that are loaded before the memory of the file is released: a layer of many experts is large.
const RELEASED: usize = 16;

/// Weights of the experts of one layer.
#[derive(Debug)]
pub(crate) struct ExpertLayer {
    /// Router, always multiplied in `f32`: rounding may choose another expert.
    router: Packed,
    blocks: Vec<GatedBlock>,
    shared: Option<SharedExpert>,
    normalized: bool,
}

/// Expert that all tokens pass through, with the vector of its gate.
#[derive(Debug)]
struct SharedExpert {
    block: GatedBlock,
    gate: Vec<f32>,
}

/// Activations of the experts of a step, kept so that the next step of the same size allocates nothing.
#[derive(Debug, Default)]
pub(super) struct ExpertScratch {
    routes: ExpertRoutes,
    /// Inputs of all experts, grouped by expert, which are then replaced by their outputs.
    rows: Vec<f32>,
    /// Output of the block, shape (tokens, hidden).
    pub(super) output: Vec<f32>,
}

/// Resources of a step.
pub(super) struct ExpertStep<'a> {
    pub(super) team: &'a Team,
    pub(super) activation: Gate,
    pub(super) clock: &'a mut StepClock,
    /// Working memory for gate and up projections, and for the activated gate, with room for all tokens.
    pub(super) gate_up: &'a mut [f32],
    pub(super) activated: &'a mut [f32],
}

impl ExpertScratch {
    /// Makes room for `tokens` tokens.
    pub(super) fn resize(&mut self, experts: &Experts, tokens: usize, hidden: usize) {
        self.routes.resize(tokens, experts.count, experts.per_token);
        self.rows.resize(tokens * experts.per_token * hidden, 0.0);
        self.output.resize(tokens * hidden, 0.0);
    }
}

impl ExpertLayer {
    /// Loads the experts and the router with names below `path`.
    pub(super) fn load(
        weights: &Weights,
        experts: &Experts,
        arithmetic: Arithmetic,
        path: &str,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        // The router is loaded first, because its shape reveals a wrong number of experts.
        let router = matrix(weights, &format!("{path}.gate.weight"), experts.count, hidden)?;
        let mut blocks = Vec::with_capacity(experts.count);
        for index in 0..experts.count {
            let sizes = [experts.width, hidden];
            blocks.push(GatedBlock::load(weights, arithmetic, &format!("{path}.experts.{index}"), sizes)?);
            if index % RELEASED == RELEASED - 1 {
                weights.release();
            }
        }
        let shared = match experts.shared {
            Some(width) => Some(SharedExpert {
                block: GatedBlock::load(weights, arithmetic, &format!("{path}.shared_expert"), [width, hidden])?,
                gate: shared_gate(weights, &format!("{path}.shared_expert_gate.weight"), hidden)?,
            }),
            None => None,
        };
        Ok(Self { router, blocks, shared, normalized: experts.normalized })
    }

    /// Size of the matrices, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let shared = self.shared.as_ref().map_or(0, |shared| shared.block.bytes());
        self.router.bytes() + self.blocks.iter().map(GatedBlock::bytes).sum::<usize>() + shared
    }

    /// Computes the block for `input`, of shape (tokens, hidden), into `scratch.output`.
    pub(super) fn run(&self, step: &mut ExpertStep<'_>, input: &[f32], scratch: &mut ExpertScratch) {
        let hidden = self.router.inn();
        let tokens = input.len() / hidden;
        let ExpertScratch { routes, rows, output } = scratch;
        matmul(step.team, input, tokens, &self.router, routes.logits());
        routes.choose(step.team, self.normalized);
        routes.gather(step.team, 0..rows.len() / hidden, input, rows, hidden);
        step.clock.lap(StepPhase::Routing);
        for (expert, block) in self.blocks.iter().enumerate() {
            let range = routes.rows_of(expert);
            if !range.is_empty() {
                step.in_place(block, &mut rows[range.start * hidden..range.end * hidden], hidden);
            }
        }
        step.team.rows(output, hidden, GRAIN, &|first, share| {
            for (token, output) in share.chunks_exact_mut(hidden).enumerate() {
                output.fill(0.0);
                for (row, probability) in routes.of_token(first + token) {
                    axpy(output, probability, &rows[row * hidden..][..hidden]);
                }
            }
        });
        step.clock.lap(StepPhase::Routing);
        let Some(shared) = &self.shared else { return };
        // The rows of the experts have been added up, so their memory can hold the output of the shared expert.
        let rows = &mut rows[..tokens * hidden];
        rows.copy_from_slice(input);
        step.in_place(&shared.block, rows, hidden);
        step.team.rows(output, hidden, GRAIN, &|first, share| {
            for (token, output) in (first..).zip(share.chunks_exact_mut(hidden)) {
                let range = token * hidden..(token + 1) * hidden;
                axpy(output, shared_factor(&shared.gate, &input[range.clone()]), &rows[range]);
            }
        });
        step.clock.lap(StepPhase::Routing);
    }
}

impl ExpertStep<'_> {
    /// Replaces `rows` by the output of a feed-forward block.
    fn in_place(&mut self, block: &GatedBlock, rows: &mut [f32], hidden: usize) {
        let count = rows.len() / hidden;
        let gate_up = &mut self.gate_up[..count * block.gate_up.width()];
        let activated = &mut self.activated[..count * block.width()];
        block.gate_up.product(self.team, rows, count, gate_up);
        self.clock.lap(StepPhase::GateUp);
        block.activate(self.team, self.activation, count, gate_up, activated);
        self.clock.lap(StepPhase::Activation);
        block.down.matmul(self.team, activated, count, rows);
        self.clock.lap(StepPhase::Down);
    }
}
