//! A linear map of the decoder, forward and backward, with its trained part.

use std::ops::Range;

use super::outer;
use crate::Arithmetic;
use crate::kernel::directed::Direction;
use crate::kernel::two_way::TwoWayMatrix;
use crate::kernel::{Packed, Team, matmul, matmul_add};

/// Linear map `y = W x`, plus an adapter's `scale · B A x` if there is one.
#[derive(Debug)]
pub(super) struct Projection {
    /// Weight, shape (out, in).
    weight: TwoWayMatrix,
    trained: TrainedPart,
}

/// Trained part of a projection.
#[derive(Debug)]
pub(super) enum TrainedPart {
    Nothing,
    Adapter(Box<ProjectionAdapter>),
    /// The weight itself, with its range among the values.
    Weight(Range<usize>),
}

/// LoRA adapter of one projection.
#[derive(Debug)]
pub(super) struct ProjectionAdapter {
    rank: usize,
    scale: f32,
    /// Range of A, shape (rank, in), among the values; `b` is the range of B, shape (out, rank).
    a: Range<usize>,
    b: Range<usize>,
    /// Packed A and its transpose.
    shrink: [Packed; 2],
    /// Packed B times the scale, and its transpose.
    expand: [Packed; 2],
}

/// Parameters shared by the matrix multiplications of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct ActivationRows<'a> {
    pub(super) team: &'a Team,
    /// Number of rows of all activations: one per token.
    pub(super) count: usize,
    /// If `true`, adapters take part.
    pub(super) adapted: bool,
}

/// Destination of a matrix multiplication.
#[derive(Debug)]
pub(super) enum Output<'a> {
    Set(&'a mut [f32]),
    Add(&'a mut [f32]),
    Nowhere,
}

/// Buffers for the gradients of a backward pass.
#[derive(Debug)]
pub(super) struct GradientBuffers<'a> {
    /// Flat gradients of all trained values.
    pub(super) gradients: &'a mut [f32],
    /// Gradients inside adapters, with room for (rows, rank).
    pub(super) small: &'a mut [f32],
}

impl<'a> Output<'a> {
    /// Multiplies `rows` rows of `x` and returns the destination slice, if any.
    fn product(
        self,
        team: &Team,
        matrix: &TwoWayMatrix,
        direction: Direction,
        x: &[f32],
        rows: usize,
    ) -> Option<&'a mut [f32]> {
        match self {
            Self::Set(y) => {
                matrix.matmul(team, direction, x, rows, y);
                Some(y)
            }
            Self::Add(y) => {
                matrix.matmul_add(team, direction, x, rows, y);
                Some(y)
            }
            Self::Nowhere => None,
        }
    }
}

impl ProjectionAdapter {
    pub(super) fn new(rank: usize, scale: f32, [a, b]: [Range<usize>; 2]) -> Self {
        let empty = || [Packed::from_f32(&[], 0, 0), Packed::from_f32(&[], 0, 0)];
        Self { rank, scale, a, b, shrink: empty(), expand: empty() }
    }

    fn repack(&mut self, values: &[f32], scaled: &mut Vec<f32>) {
        let rank = self.rank;
        let a = &values[self.a.clone()];
        let b = &values[self.b.clone()];
        let inn = a.len() / rank;
        let out = b.len() / rank;
        self.shrink = [Packed::from_f32(a, rank, inn), Packed::from_f32_transposed(a, inn, rank)];
        scaled.clear();
        // Scaling B once per repack saves a pass over the outputs of every forward and backward step.
        scaled.extend(b.iter().map(|value| value * self.scale));
        self.expand = [Packed::from_f32(scaled, out, rank), Packed::from_f32_transposed(scaled, rank, out)];
    }
}

impl Projection {
    /// Creates a projection. A trained weight must use `f32` arithmetic, which the loader ensures.
    pub(super) fn new(weight: Packed, trained: TrainedPart, arithmetic: Arithmetic) -> Self {
        Self { weight: TwoWayMatrix::new(weight, arithmetic), trained }
    }

    /// Placeholder where a layer has no such projection.
    pub(super) fn empty() -> Self {
        Self::new(Packed::from_f32(&[], 0, 0), TrainedPart::Nothing, Arithmetic::F32)
    }

    /// Updates the weights with changed values.
    pub(super) fn repack(&mut self, values: &[f32], scratch: &mut Vec<f32>) {
        let out = self.weight.out();
        let inn = self.weight.inn();
        match &mut self.trained {
            TrainedPart::Nothing => {}
            TrainedPart::Adapter(delta) => delta.repack(values, scratch),
            TrainedPart::Weight(range) => {
                let values = &values[range.clone()];
                self.weight = TwoWayMatrix::new(Packed::from_f32(values, out, inn), Arithmetic::F32);
            }
        }
    }

    /// Returns `true` if the backward pass needs the input.
    pub(super) fn learns(&self) -> bool {
        !matches!(self.trained, TrainedPart::Nothing)
    }

    /// Rank of the adapter; 0 without one.
    pub(super) fn rank(&self) -> usize {
        match &self.trained {
            TrainedPart::Adapter(delta) => delta.rank,
            _ => 0,
        }
    }

    /// Size of the packed weights, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let delta = match &self.trained {
            TrainedPart::Adapter(delta) => delta.shrink.iter().chain(&delta.expand).map(Packed::bytes).sum(),
            _ => 0,
        };
        self.weight.bytes() + delta
    }

    /// Applies the projection to `x` (rows, in). `small`, of shape (rows, rank), stores `A x` for
    /// [`backward`](Self::backward).
    pub(super) fn forward(&self, rows: ActivationRows<'_>, x: &[f32], small: &mut [f32], into: Output<'_>) {
        let ActivationRows { team, count, adapted } = rows;
        // `Nowhere` computes nothing. A layer that needs `A x` alone calls `shrink`.
        let Some(y) = into.product(team, &self.weight, Direction::Forward, x, count) else { return };
        self.shrink(rows, x, small);
        if let (TrainedPart::Adapter(delta), true) = (&self.trained, adapted) {
            matmul_add(team, small, count, &delta.expand[0], y);
        }
    }

    /// Computes `A x` alone, if an adapter takes part.
    pub(super) fn shrink(&self, rows: ActivationRows<'_>, x: &[f32], small: &mut [f32]) {
        if let (TrainedPart::Adapter(delta), true) = (&self.trained, rows.adapted) {
            matmul(rows.team, x, rows.count, &delta.shrink[0], small);
        }
    }

    /// Given the gradient `dy` (rows, out) of the output, writes that of the input to `into` and adds those of the
    /// trained values to the flat gradients. `x` may be empty if nothing is trained.
    ///
    /// With y = W x + s B A x: dx = Wᵀ dy + Aᵀ dh with dh = s Bᵀ dy, dA = Σ dh xᵀ, dB = s Σ dy (A x)ᵀ.
    pub(super) fn backward(
        &self,
        rows: ActivationRows<'_>,
        dy: &[f32],
        x: &[f32],
        small: &[f32],
        into: Output<'_>,
        learning: &mut GradientBuffers<'_>,
    ) {
        let ActivationRows { team, count, .. } = rows;
        let dx = into.product(team, &self.weight, Direction::Backward, dy, count);
        let GradientBuffers { gradients, small: dsmall } = learning;
        match &self.trained {
            TrainedPart::Nothing => {}
            TrainedPart::Weight(range) => outer::add(team, count, dy, x, 1.0, &mut gradients[range.clone()]),
            TrainedPart::Adapter(delta) => {
                // The buffer has room for the largest rank; modules may differ in theirs.
                let dsmall = &mut dsmall[..count * delta.rank];
                // `expand` holds s·B, so this product is dh itself; dB uses the unscaled dy and needs the factor
                // again.
                matmul(team, dy, count, &delta.expand[1], dsmall);
                outer::add(team, count, dy, small, delta.scale, &mut gradients[delta.b.clone()]);
                outer::add(team, count, dsmall, x, 1.0, &mut gradients[delta.a.clone()]);
                if let Some(dx) = dx {
                    matmul_add(team, dsmall, count, &delta.shrink[1], dx);
                }
            }
        }
    }
}
