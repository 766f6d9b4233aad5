//! A packed matrix together with the direction in which a multiplication passes through it.

use std::ops::Range;

use super::bf16_dot::DotMethod;
use super::isa::Isa;
use super::layout::{BLOCK, PANEL};
use super::packed::Packed;
use super::transpose::transpose;
use super::weight_block::{BLOCK_LEN, unpack_block};

/// Direction of a multiplication with a matrix W of shape (out, in).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// `y = x · Wᵀ`, from inputs to outputs.
    Forward,
    /// `dx = dy · W`, from gradients of outputs to gradients of inputs.
    Backward,
}

/// A packed matrix and a direction. Weights are unpacked piece by piece, so no transpose is ever stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectedMatrix<'a> {
    w: &'a Packed,
    direction: Direction,
}

/// Number of values in a thread's buffer for unpacking: one block in `f32` and one rounded to bf16.
pub(super) const UNPACK_LEN: usize = BLOCK_LEN + BLOCK_LEN / 2;

impl<'a> DirectedMatrix<'a> {
    pub(crate) fn new(w: &'a Packed, direction: Direction) -> Self {
        Self { w, direction }
    }

    /// Number of results per row.
    pub(crate) fn results(self) -> usize {
        if self.direction == Direction::Forward { self.w.out() } else { self.w.inn() }
    }

    /// Number of terms of a result's sum.
    pub(crate) fn terms(self) -> usize {
        if self.direction == Direction::Forward { self.w.inn() } else { self.w.out() }
    }

    /// Unpacks to `to` the weights of some terms for the [`PANEL`] results that begin at `panel · PANEL`, shape (terms,
    /// [`PANEL`]). Terms and results beyond the last are zeros. `buffer` has [`UNPACK_LEN`] values.
    ///
    /// # Panics
    /// If the terms do not begin at a block boundary, or `to` has no room for their blocks.
    pub(super) fn floats(self, isa: Isa, panel: usize, terms: Range<usize>, buffer: &mut [f32], to: &mut [f32]) {
        let room = terms.len().next_multiple_of(BLOCK) * PANEL;
        assert!(terms.start.is_multiple_of(BLOCK) && to.len() >= room, "terms from {} on", terms.start);
        for (index, to) in terms.step_by(BLOCK).zip(to.chunks_exact_mut(BLOCK_LEN)) {
            match self.direction {
                Direction::Forward => unpack_block(isa, self.w, panel, index / BLOCK, to),
                Direction::Backward => {
                    let block = &mut buffer[..BLOCK_LEN];
                    unpack_block(isa, self.w, index / BLOCK, panel, block);
                    transpose(isa, bytemuck::cast_slice(block), PANEL, bytemuck::cast_slice_mut(to));
                }
            }
        }
    }

    /// Unpacks weights like [`floats`](Self::floats), rounded to bf16: pairs of terms from `pairs.start` on,
    /// shape (pairs, [`PANEL`]).
    ///
    /// # Panics
    /// If the pairs do not begin at a block boundary, or `to` has no room for their blocks.
    pub(super) fn pairs(self, way: DotMethod, panel: usize, pairs: Range<usize>, buffer: &mut [f32], to: &mut [u32]) {
        const PAIRS: usize = BLOCK / 2;
        let room = pairs.len().next_multiple_of(PAIRS) * PANEL;
        assert!(pairs.start.is_multiple_of(PAIRS) && to.len() >= room, "pairs from {} on", pairs.start);
        let isa = Isa::best();
        let (block, neighbors) = buffer[..UNPACK_LEN].split_at_mut(BLOCK_LEN);
        let neighbors = bytemuck::cast_slice_mut(neighbors);
        for (index, to) in pairs.step_by(PAIRS).zip(to.chunks_exact_mut(BLOCK_LEN / 2)) {
            match self.direction {
                Direction::Forward => {
                    unpack_block(isa, self.w, panel, index / PAIRS, block);
                    for (rows, to) in block.chunks_exact(2 * PANEL).zip(to.chunks_exact_mut(PANEL)) {
                        way.pair_rows(&rows[..PANEL], &rows[PANEL..], to);
                    }
                }
                Direction::Backward => {
                    unpack_block(isa, self.w, index / PAIRS, panel, block);
                    way.pair_neighbors(block, neighbors);
                    transpose(isa, neighbors, PANEL / 2, to);
                }
            }
        }
    }
}
