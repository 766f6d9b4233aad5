//! Last products of the backward pass of attention, with operands in pairs of bf16 values.

use super::TILE;
use crate::kernel::bf16_dot::{Bf16Support, DotMethod};
use crate::kernel::block::{Extent, Left, Right, Sum, multiply_pairs};
use crate::kernel::worker_memory::FreeMemory;

/// Vectors of up to [`TILE`] tokens of one head, `stride` values apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenVectors<'a> {
    pub(super) from: &'a [f32],
    pub(super) stride: usize,
    pub(super) count: usize,
    pub(super) dim: usize,
}

/// Rounded operands of one tile of keys and one tile of queries. Sums over tokens take two tokens at a time.
pub(super) struct RoundedTile<'a> {
    support: Bf16Support,
    dim: usize,
    /// Pairs of scaled keys, shape (pairs, dim).
    keys: &'a mut [u32],
    /// Gradients of scores, shape (queries, pairs of keys).
    slopes: &'a mut [u32],
    /// Pairs of queries or of gradients of outputs, shape (pairs, dim).
    vectors: &'a mut [u32],
    /// Factors of the vectors, shape (pairs, `TILE`).
    factors: &'a mut [u32],
}

impl<'a> RoundedTile<'a> {
    /// Number of values in the buffers.
    pub(super) fn memory_len(dim: usize) -> usize {
        TILE * (dim + TILE)
    }

    pub(super) fn new(support: Bf16Support, dim: usize, free: &mut FreeMemory<'a>) -> Self {
        let [keys, vectors] = std::array::from_fn(|_| free.words(TILE * dim / 2));
        let [slopes, factors] = std::array::from_fn(|_| free.words(TILE * TILE / 2));
        Self { support, dim, keys, slopes, vectors, factors }
    }

    /// Rounds a tile of scaled keys.
    pub(super) fn take_keys(&mut self, keys: TokenVectors<'_>) {
        pair_tokens(self.support, keys, self.keys);
    }

    /// Adds the sums of the queries' vectors, each times its factors, to `to`, shape (keys, dim). The factors have
    /// shape (queries, `TILE`); the extent has rows of keys and sums over the queries.
    pub(super) fn add(&mut self, extent: Extent, (factors, vectors): (&[f32], TokenVectors<'_>), to: &mut [f32]) {
        let factors = TokenVectors { from: factors, stride: TILE, count: extent.inner, dim: TILE };
        pair_tokens(self.support, factors, self.factors);
        pair_tokens(self.support, vectors, self.vectors);
        let extent = Extent { inner: extent.inner.div_ceil(2), ..extent };
        let left = Left { from: &*self.factors, row: 1, step: TILE };
        let right = Right { from: &*self.vectors, stride: self.dim };
        multiply_pairs(self.support, extent, left, right, (to, self.dim), Sum::Add);
    }

    /// Adds the keys' contribution to the gradients of queries, given the gradients of scores. The extent has rows of
    /// queries and sums over the keys.
    pub(super) fn add_dq(&mut self, extent: Extent, slopes: &[f32], to: (&mut [f32], usize)) {
        let pairs = extent.inner.div_ceil(2);
        for (row, to) in slopes.chunks_exact(TILE).zip(self.slopes.chunks_exact_mut(TILE / 2)).take(extent.rows) {
            DotMethod::Bf16Pairs(self.support).pair_neighbors(&row[..extent.inner], &mut to[..pairs]);
        }
        let left = Left { from: &*self.slopes, row: TILE / 2, step: 1 };
        let right = Right { from: &*self.keys, stride: self.dim };
        let extent = Extent { inner: pairs, ..extent };
        multiply_pairs(self.support, extent, left, right, to, Sum::Add);
    }
}

/// Rounds the vectors of neighboring tokens to pairs, shape (pairs of tokens, dim). An odd last token is paired with
/// zeros.
fn pair_tokens(support: Bf16Support, vectors: TokenVectors<'_>, to: &mut [u32]) {
    let TokenVectors { from, stride, count, dim } = vectors;
    let row = |index: usize| &from[index * stride..][..dim];
    let method = DotMethod::Bf16Pairs(support);
    for (index, to) in to.chunks_exact_mut(dim).take(count.div_ceil(2)).enumerate() {
        let even = row(2 * index);
        if 2 * index + 1 < count {
            method.pair_rows(even, row(2 * index + 1), to);
        } else {
            method.pair_rows(even, even, to);
            to.iter_mut().for_each(|pair| *pair &= 0xffff);
        }
    }
}
