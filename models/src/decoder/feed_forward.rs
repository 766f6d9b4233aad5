//! Weights of feed-forward blocks.

use super::DecoderConfig;
use super::experts::ExpertLayer;
use super::fused::FusedProjections;
use super::tensor::matrix;
use crate::kernel::Team;
use crate::kernel::arithmetic::Matrix;
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Minimum number of tokens per thread that justifies a parallel region.
const GRAIN: usize = 4;

/// Feed-forward block of a layer.
#[derive(Debug)]
pub(crate) enum FeedForward {
    /// One block for all tokens.
    Dense(GatedBlock),
    /// Several blocks. Each token passes through some of them.
    Experts(Box<ExpertLayer>),
}

/// Gated feed-forward block, `down(activation(gate(x)) · up(x))`.
#[derive(Debug)]
pub(crate) struct GatedBlock {
    /// Gate and up projections.
    pub(super) gate_up: FusedProjections,
    /// Down projection.
    pub(super) down: Matrix,
}

/// Activation of gate and up projections: the gate is replaced by the combination of both.
pub(super) type Gate = fn(&mut [f32], &[f32]);

impl FeedForward {
    /// Loads the block of layer `index`.
    pub(super) fn load(
        weights: &Weights,
        config: &DecoderConfig,
        arithmetic: Arithmetic,
        index: usize,
    ) -> Result<Self, ModelError> {
        let path = format!("model.layers.{index}.mlp");
        Ok(match config.architecture.experts(index) {
            Some(experts) => {
                Self::Experts(Box::new(ExpertLayer::load(weights, experts, arithmetic, &path, config.hidden)?))
            }
            None => Self::Dense(GatedBlock::load(weights, arithmetic, &path, [config.ffn, config.hidden])?),
        })
    }

    /// Size of the matrices, in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Dense(block) => block.bytes(),
            Self::Experts(experts) => experts.bytes(),
        }
    }
}

impl GatedBlock {
    /// Loads a block of inner width `width`. Its projections have names below `path`.
    pub(super) fn load(
        weights: &Weights,
        arithmetic: Arithmetic,
        path: &str,
        [width, hidden]: [usize; 2],
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{path}.{part}_proj.weight");
        let sides = [(name("gate"), width), (name("up"), width)];
        Ok(Self {
            gate_up: FusedProjections::load(weights, arithmetic, &sides, hidden)?,
            down: arithmetic.matrix(matrix(weights, &name("down"), hidden, width)?),
        })
    }

    /// Size of the matrices, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.gate_up.bytes() + self.down.bytes()
    }

    /// Inner width.
    pub(super) fn width(&self) -> usize {
        self.down.inn()
    }

    /// Writes the activated gate of `rows` rows to `activated`, given the output of the gate and up projections.
    pub(super) fn activate(&self, team: &Team, gate: Gate, rows: usize, gate_up: &[f32], activated: &mut [f32]) {
        let width = self.width();
        let columns = [0, 1].map(|part| self.gate_up.columns(part, rows));
        team.rows(activated, width, GRAIN, &|first, share| {
            for (row, activated) in share.chunks_exact_mut(width).enumerate() {
                activated.copy_from_slice(&gate_up[columns[0].row(first + row)]);
                gate(activated, &gate_up[columns[1].row(first + row)]);
            }
        });
    }
}
