//! Products with some terms of a packed matrix at a time, for callers that compute their rows tile by tile.

use std::ops::Range;

use super::bf16_dot::{Bf16Pairs, Dot, DotMethod, PlainFloats};
use super::block::{Extent, Left, Right, Sum, multiply};
use super::directed::{DirectedMatrix, UNPACK_LEN};
use super::isa::Isa;
use super::layout::PANEL;
use super::worker_memory::FreeMemory;

/// Multiplication of a matrix with rows that hold some of its terms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TermTile<'a> {
    pub(crate) isa: Isa,
    pub(crate) matrix: DirectedMatrix<'a>,
    /// If `true`, rows and weights are rounded to bf16.
    pub(crate) rounded: bool,
}

/// Buffers of a thread.
pub(crate) struct TileBuffers<'a> {
    unpack: &'a mut [f32],
    /// Unpacked weights of a panel.
    weights: &'a mut [f32],
    /// Rounded rows.
    rows: &'a mut [f32],
}

impl<'a> TileBuffers<'a> {
    /// Number of values in the buffers for up to `rows` rows and `terms` terms, whole blocks.
    pub(crate) fn memory_len(rows: usize, terms: usize) -> usize {
        UNPACK_LEN + terms * (PANEL + rows)
    }

    pub(crate) fn new(rows: usize, terms: usize, free: &mut FreeMemory<'a>) -> Self {
        let [unpack, weights, rows] = [UNPACK_LEN, terms * PANEL, terms * rows].map(|len| free.floats(len));
        Self { unpack, weights, rows }
    }
}

impl TermTile<'_> {
    /// Number of values in the sums of `rows` rows.
    pub(crate) fn sums_len(self, rows: usize) -> usize {
        self.matrix.results().next_multiple_of(PANEL) * rows
    }

    /// Adds the products of `rows` rows, `stride` apart, to `sums`, shape (panels, rows, [`PANEL`]). Each row begins
    /// with the values for `terms`, which must begin at a block boundary.
    ///
    /// # Panics
    /// If a slice is too short.
    pub(crate) fn add(
        self,
        (x, stride): (&[f32], usize),
        rows: usize,
        terms: Range<usize>,
        buffers: &mut TileBuffers<'_>,
        sums: &mut [f32],
    ) {
        if self.rounded {
            return match DotMethod::best() {
                DotMethod::Bf16Pairs(has) => {
                    self.add_rounded(Bf16Pairs::new(has), (x, stride), rows, terms, buffers, sums)
                }
                DotMethod::PlainFloats => self.add_rounded(PlainFloats::new(), (x, stride), rows, terms, buffers, sums),
            };
        }
        let TileBuffers { unpack, weights, .. } = buffers;
        for (panel, sums) in sums.chunks_exact_mut(rows * PANEL).enumerate() {
            self.matrix.floats(self.isa, panel, terms.clone(), unpack, weights);
            let extent = Extent { rows, inner: terms.len(), columns: PANEL };
            let left = Left { from: x, row: stride, step: 1 };
            multiply(self.isa, extent, left, Right { from: weights, stride: PANEL }, (sums, PANEL), Sum::Add);
        }
    }

    fn add_rounded<D: Dot>(
        self,
        mut dot: D,
        (x, stride): (&[f32], usize),
        rows: usize,
        terms: Range<usize>,
        buffers: &mut TileBuffers<'_>,
        sums: &mut [f32],
    ) {
        let TileBuffers { unpack, weights, rows: rounded } = buffers;
        let pairs = terms.start / 2..terms.end.div_ceil(2);
        let rounded = bytemuck::cast_slice_mut::<f32, D::Pair>(rounded);
        for (row, to) in x.chunks(stride).take(rows).zip(rounded.chunks_exact_mut(pairs.len())) {
            dot.round(&row[..terms.len()], to);
        }
        let weights = bytemuck::cast_slice_mut::<f32, u32>(weights);
        for (panel, sums) in sums.chunks_exact_mut(rows * PANEL).enumerate() {
            self.matrix.pairs(DotMethod::best(), panel, pairs.clone(), unpack, weights);
            dot.multiply(rounded, pairs.len(), &weights[..pairs.len() * PANEL], sums);
        }
    }
}
