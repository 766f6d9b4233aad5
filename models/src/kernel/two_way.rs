//! Weight matrices of a network that is trained, multiplied forward and backward.

use super::arithmetic::Arithmetic;
use super::backward_matmul;
use super::bf16_dot::DotMethod;
use super::bf16_matrix::{self, PairWeights};
use super::directed::{DirectedMatrix, Direction};
use super::isa::Isa;
use super::matmul::{matmul, matmul_add};
use super::matmul_output::Finish;
use super::{Packed, Team};

/// A weight matrix W of shape (out, in) in its compact form, for `y = x · Wᵀ` and `dx = dy · W`. Neither a transpose
/// nor a rounded copy is kept: a multiplication unpacks the weights once for each of its groups of rows.
#[derive(Debug)]
pub(crate) struct TwoWayMatrix {
    weight: Packed,
    /// If `true`, weights and activations are rounded to bf16.
    rounded: bool,
}

impl TwoWayMatrix {
    /// Prepares a weight matrix. Arithmetic in integers counts as `f32`.
    pub(crate) fn new(weight: Packed, arithmetic: Arithmetic) -> Self {
        Self { weight, rounded: arithmetic == Arithmetic::Bf16 }
    }

    /// Number of outputs.
    pub(crate) fn out(&self) -> usize {
        self.weight.out()
    }

    /// Number of inputs.
    pub(crate) fn inn(&self) -> usize {
        self.weight.inn()
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.weight.bytes()
    }

    /// Computes the product of `m` rows of `x` in the given direction. Overwrites y.
    pub(crate) fn matmul(&self, team: &Team, direction: Direction, x: &[f32], m: usize, y: &mut [f32]) {
        if !self.rounded && direction == Direction::Forward {
            return matmul(team, x, m, &self.weight, y);
        }
        self.product(team, direction, x, m, y, Finish::Set);
    }

    /// Adds the product of `m` rows of `x` in the given direction to y. Each product is summed completely before it is
    /// added.
    pub(crate) fn matmul_add(&self, team: &Team, direction: Direction, x: &[f32], m: usize, y: &mut [f32]) {
        if !self.rounded && direction == Direction::Forward {
            return matmul_add(team, x, m, &self.weight, y);
        }
        self.product(team, direction, x, m, y, Finish::Add);
    }

    fn product(&self, team: &Team, direction: Direction, x: &[f32], m: usize, y: &mut [f32], finish: Finish<'_>) {
        let matrix = DirectedMatrix::new(&self.weight, direction);
        if self.rounded {
            bf16_matrix::product(DotMethod::best(), team, x, m, PairWeights::Packed(matrix), y, finish);
        } else {
            backward_matmul::product(Isa::best(), team, x, m, matrix, y, finish);
        }
    }
}
