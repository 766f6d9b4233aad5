//! One linear map of the decoder, forward and backward, with what of it is learnt.

use std::ops::Range;

use super::outer;
use crate::Arithmetic;
use crate::kernel::arithmetic::Matrix;
use crate::kernel::{Packed, Team, matmul, matmul_add};

/// `y = W x`, plus an adapter's `scale · B A x` where there is one.
#[derive(Debug)]
pub(super) struct Projection {
    /// Shape (out, in).
    weight: Matrix,
    /// Its transpose: the product that takes gradients back to the input.
    transposed: Matrix,
    learnt: Learnt,
}

/// What of a projection is learnt.
#[derive(Debug)]
pub(super) enum Learnt {
    Nothing,
    Adapter(Box<Delta>),
    /// The weight itself, where it lies among the values.
    Weight(Range<usize>),
}

/// A LoRA adapter of one projection.
#[derive(Debug)]
pub(super) struct Delta {
    rank: usize,
    scale: f32,
    /// A (rank, in) and B (out, rank) among the values.
    a: Range<usize>,
    b: Range<usize>,
    /// A, and its transpose.
    shrink: [Packed; 2],
    /// B times the scale, and its transpose.
    expand: [Packed; 2],
}

/// What a product runs on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) team: &'a Team,
    /// Rows of all activations: tokens.
    pub(super) count: usize,
    /// Whether adapters take part.
    pub(super) adapted: bool,
}

/// Where a product goes.
#[derive(Debug)]
pub(super) enum Output<'a> {
    Set(&'a mut [f32]),
    Add(&'a mut [f32]),
    Nowhere,
}

/// Where a backward pass puts what it learns.
#[derive(Debug)]
pub(super) struct Learning<'a> {
    /// The flat gradients.
    pub(super) gradients: &'a mut [f32],
    /// Gradients inside adapters: room for (rows, rank).
    pub(super) small: &'a mut [f32],
}

impl<'a> Output<'a> {
    /// The product with `rows` rows of `x`. Gives back where it went.
    fn product(self, team: &Team, matrix: &Matrix, x: &[f32], rows: usize) -> Option<&'a mut [f32]> {
        match self {
            Self::Set(y) => {
                matrix.matmul(team, x, rows, y);
                Some(y)
            }
            Self::Add(y) => {
                matrix.matmul_add(team, x, rows, y);
                Some(y)
            }
            Self::Nowhere => None,
        }
    }
}

impl Delta {
    pub(super) fn new(rank: usize, scale: f32, [a, b]: [Range<usize>; 2]) -> Self {
        let empty = || [Packed::from_f32(&[], 0, 0), Packed::from_f32(&[], 0, 0)];
        Self { rank, scale, a, b, shrink: empty(), expand: empty() }
    }

    fn repack(&mut self, values: &[f32], scaled: &mut Vec<f32>) {
        let (rank, a, b) = (self.rank, &values[self.a.clone()], &values[self.b.clone()]);
        let (inn, out) = (a.len() / rank, b.len() / rank);
        self.shrink = [Packed::from_f32(a, rank, inn), Packed::from_f32_transposed(a, inn, rank)];
        scaled.clear();
        scaled.extend(b.iter().map(|value| value * self.scale));
        self.expand = [Packed::from_f32(scaled, out, rank), Packed::from_f32_transposed(scaled, rank, out)];
    }
}

impl Projection {
    /// The arithmetic of a weight that is learnt itself is `f32`: the loader refuses others.
    pub(super) fn new(weight: Packed, learnt: Learnt, arithmetic: Arithmetic) -> Self {
        let [weight, transposed] = arithmetic.pair(weight);
        Self { weight, transposed, learnt }
    }

    /// Takes over changed values.
    pub(super) fn repack(&mut self, values: &[f32], scratch: &mut Vec<f32>) {
        let (out, inn) = (self.weight.out(), self.weight.inn());
        match &mut self.learnt {
            Learnt::Nothing => {}
            Learnt::Adapter(delta) => delta.repack(values, scratch),
            Learnt::Weight(range) => {
                let values = &values[range.clone()];
                self.weight = Matrix::Exact(Packed::from_f32(values, out, inn));
                self.transposed = Matrix::Exact(Packed::from_f32_transposed(values, inn, out));
            }
        }
    }

    /// Whether the backward pass needs the input.
    pub(super) fn learns(&self) -> bool {
        !matches!(self.learnt, Learnt::Nothing)
    }

    /// The rank of the adapter; 0 without one.
    pub(super) fn rank(&self) -> usize {
        match &self.learnt {
            Learnt::Adapter(delta) => delta.rank,
            _ => 0,
        }
    }

    /// Bytes the packed forms take.
    pub(super) fn bytes(&self) -> usize {
        let delta = match &self.learnt {
            Learnt::Adapter(delta) => delta.shrink.iter().chain(&delta.expand).map(Packed::bytes).sum(),
            _ => 0,
        };
        self.weight.bytes() + self.transposed.bytes() + delta
    }

    /// The product with `x` (rows, in). `small`, of shape (rows, rank), keeps `A x` for [`backward`](Self::backward).
    pub(super) fn forward(&self, rows: Rows<'_>, x: &[f32], small: &mut [f32], into: Output<'_>) {
        let Rows { team, count, adapted } = rows;
        let Some(y) = into.product(team, &self.weight, x, count) else { return };
        self.shrink(rows, x, small);
        if let (Learnt::Adapter(delta), true) = (&self.learnt, adapted) {
            matmul_add(team, small, count, &delta.expand[0], y);
        }
    }

    /// `A x` alone, where there is an adapter that takes part.
    pub(super) fn shrink(&self, rows: Rows<'_>, x: &[f32], small: &mut [f32]) {
        if let (Learnt::Adapter(delta), true) = (&self.learnt, rows.adapted) {
            matmul(rows.team, x, rows.count, &delta.shrink[0], small);
        }
    }

    /// From the gradient `dy` (rows, out) of the output: that of the input goes into `into`, those of what is learnt are
    /// added to the flat gradients. `x` may be empty where nothing is learnt.
    ///
    /// With y = W x + s B A x: dx = Wᵀ dy + Aᵀ dh with dh = s Bᵀ dy, dA = Σ dh xᵀ, dB = s Σ dy (A x)ᵀ.
    pub(super) fn backward(
        &self,
        rows: Rows<'_>,
        dy: &[f32],
        x: &[f32],
        small: &[f32],
        into: Output<'_>,
        learning: &mut Learning<'_>,
    ) {
        let Rows { team, count, .. } = rows;
        let dx = into.product(team, &self.transposed, dy, count);
        let Learning { gradients, small: dsmall } = learning;
        match &self.learnt {
            Learnt::Nothing => {}
            Learnt::Weight(range) => outer::add(team, count, dy, x, 1.0, &mut gradients[range.clone()]),
            Learnt::Adapter(delta) => {
                let dsmall = &mut dsmall[..count * delta.rank];
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
