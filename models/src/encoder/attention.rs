//! Full attention inside each sequence of a ragged batch.

use std::ops::Range;

use super::output_rows::OutputRows;
use super::pieces::PieceSequence;
use super::relative_bias::RelativeBias;
use crate::kernel::isa::Isa;
use crate::kernel::panel::{PANEL, panel_product};
use crate::kernel::softmax_columns;
use crate::kernel::team::Base;
use crate::kernel::transpose::transpose_block;
use crate::kernel::{Team, add};

/// Queries and keys are padded to a multiple of this number, the width of a vector and of a transposed square.
const LANES: usize = 16;

/// Shape of the attention.
pub(super) struct AttentionShape<'a> {
    pub(super) heads: usize,
    /// Numbers per head, a multiple of [`PANEL`].
    pub(super) head: usize,
    /// Biases of the scores by relative position. `None` adds nothing.
    pub(super) bias: Option<&'a RelativeBias>,
    /// Largest distance between a query and its keys. `None` sets no limit.
    pub(super) reach: Option<usize>,
    /// Queries whose output is computed.
    pub(super) rows: OutputRows,
}

/// Computes `out = softmax(Q Kᵀ / √head + bias) V` per sequence and head. `qkv` has shape (pieces, 3 · heads · head),
/// with queries, keys and values side by side, and `out` has shape (output rows, heads · head).
pub(super) fn attend(
    team: &Team,
    shape: &AttentionShape<'_>,
    sequences: &[PieceSequence],
    qkv: &[f32],
    out: &mut [f32],
) {
    let AttentionShape { heads, head, bias, reach, rows } = *shape;
    let width = heads * head;
    assert!(head.is_multiple_of(PANEL) && out.len() == rows.total(sequences) * width, "attention shapes");
    let firsts = starts(sequences, OutputRows::All);
    let places = starts(sequences, rows);
    let base = Base(out.as_mut_ptr());
    let len = out.len();
    team.sweep(sequences.len() * heads, &|claims| {
        // Allocated once per thread, because a short sequence takes less time than an allocation.
        let mut buffers = HeadBuffers::default();
        for item in claims {
            let sequence = item / heads;
            let at = item % heads * head;
            let pieces = firsts[sequence]..firsts[sequence] + sequences[sequence].len();
            let place = places[sequence];
            let wanted = rows.count(pieces.len());
            assert!((place + wanted) * width <= len, "attention rows");
            let qkv = &qkv[pieces.start * 3 * width..pieces.end * 3 * width];
            let bias = bias.map(|bias| (bias, item % heads));
            let one = AttentionHead { qkv, width, at, head, bias, reach };
            one.attend(wanted, &mut buffers, |row, column, values| {
                let first = (place + row) * width + at + column;
                // SAFETY: inside `out`, as asserted, and no other work item writes this row of this head.
                let to = unsafe { std::slice::from_raw_parts_mut(base.at(first), values.len()) };
                to.copy_from_slice(values);
            });
        }
    });
}

/// First row of each sequence in a matrix with the given rows of all sequences, which have no padding between them.
fn starts(sequences: &[PieceSequence], rows: OutputRows) -> Vec<usize> {
    let mut next = 0;
    let start = |sequence: &PieceSequence| {
        let start = next;
        next += rows.count(sequence.len());
        start
    };
    sequences.iter().map(start).collect()
}

/// Buffers of one thread, reused from head to head. A block is up to [`PANEL`] queries, whose scores stay in cache.
#[derive(Debug, Default)]
struct HeadBuffers {
    /// Values as `[panel of dimensions][key][PANEL]`.
    values: Vec<f32>,
    /// Queries of a block as `[query][dimension]`, scaled.
    rows: Vec<f32>,
    /// The same as `[dimension][PANEL]`.
    queries: Vec<f32>,
    /// Scores of a block, then its weights, as `[key][PANEL]`. One vector computes the softmax of sixteen queries.
    scores: Vec<f32>,
    /// Weights of a block as `[query][key]`.
    weights: Vec<f32>,
    /// Outputs of a block for one panel of dimensions.
    sums: Vec<f32>,
}

/// One attention head of one sequence.
struct AttentionHead<'a> {
    /// Rows of the sequence.
    qkv: &'a [f32],
    width: usize,
    /// Column where the head begins in each of the three parts of a row.
    at: usize,
    head: usize,
    /// Biases of the scores, and the index of the head.
    bias: Option<(&'a RelativeBias, usize)>,
    /// Largest distance between a query and its keys.
    reach: Option<usize>,
}

impl AttentionHead<'_> {
    /// Computes the outputs of the first `wanted` queries and passes them to `write` with their row and the column of
    /// their first dimension, a panel of dimensions at a time.
    fn attend(&self, wanted: usize, buffers: &mut HeadBuffers, mut write: impl FnMut(usize, usize, &[f32])) {
        let count = self.qkv.len() / (3 * self.width);
        self.copy_values(&mut buffers.values);
        for first in (0..wanted).step_by(PANEL) {
            // Includes queries that are not wanted, so a block reads the same keys however many are.
            let block = first..count.min(first + PANEL);
            let rows = first..wanted.min(block.end);
            let near = self.near(first, count).start..self.near(block.end - 1, count).end;
            self.weigh(&block, &near, buffers);
            let HeadBuffers { values, weights, sums, .. } = &mut *buffers;
            let stride = near.len().next_multiple_of(LANES);
            for (panel, values) in values.chunks_exact(count * PANEL).enumerate() {
                sums.clear();
                sums.resize(rows.len() * PANEL, 0.0);
                panel_product(weights, stride, &values[near.start * PANEL..near.end * PANEL], sums);
                let outputs = rows.clone().zip(sums.chunks_exact(PANEL));
                outputs.for_each(|(row, values)| write(row, panel * PANEL, values));
            }
        }
    }

    /// Computes the softmax weights of a block of queries for the keys in `near`, with rows as long as these keys padded
    /// to whole vectors.
    fn weigh(&self, block: &Range<usize>, near: &Range<usize>, buffers: &mut HeadBuffers) {
        let HeadBuffers { rows, queries, scores, weights, .. } = buffers;
        let columns = block.len().next_multiple_of(LANES);
        self.transpose_queries(block, columns, rows, queries);
        let padded = near.len().next_multiple_of(LANES);
        scores.clear();
        scores.resize(padded * PANEL, 0.0);
        let scored = &mut scores[..near.len() * PANEL];
        let keys = &self.qkv[near.start * 3 * self.width + self.width + self.at..];
        panel_product(keys, 3 * self.width, queries, scored);
        self.adjust(block, near, scored);
        softmax_columns(scored, PANEL, columns);
        weights.resize(PANEL * padded, 0.0);
        let from = (bytemuck::cast_slice(scores), PANEL);
        transpose_block(Isa::best(), [padded, columns], from, (bytemuck::cast_slice_mut(weights), padded));
    }

    /// Adds the biases to scores of shape (keys, [`PANEL`]), and excludes keys that are out of a query's reach.
    fn adjust(&self, block: &Range<usize>, near: &Range<usize>, scores: &mut [f32]) {
        for (key, scores) in near.clone().zip(scores.chunks_exact_mut(PANEL)) {
            let scores = &mut scores[..block.len()];
            if let Some((bias, head)) = self.bias {
                add(scores, bias.column(head, key, block));
            }
            let Some(reach) = self.reach else { continue };
            for (query, score) in block.clone().zip(scores) {
                if query.abs_diff(key) > reach {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Range of the keys that a query attends to, among `count` keys.
    fn near(&self, query: usize, count: usize) -> Range<usize> {
        let Some(reach) = self.reach else { return 0..count };
        query.saturating_sub(reach)..query.saturating_add(reach).saturating_add(1).min(count)
    }

    /// Part 0, 1 or 2 (query, key, value) of each row.
    fn part(&self, part: usize) -> impl Iterator<Item = &[f32]> {
        let at = part * self.width + self.at;
        self.qkv.chunks_exact(3 * self.width).map(move |row| &row[at..at + self.head])
    }

    /// Writes a block of queries as `[dimension][PANEL]`, scaled by 1 / √head. Columns from the block's length on have
    /// no meaning.
    fn transpose_queries(&self, block: &Range<usize>, columns: usize, rows: &mut Vec<f32>, queries: &mut Vec<f32>) {
        let scale = 1.0 / (self.head as f32).sqrt();
        rows.resize(PANEL * self.head, 0.0);
        queries.resize(self.head * PANEL, 0.0);
        for (row, query) in rows.chunks_exact_mut(self.head).zip(self.part(0).skip(block.start).take(block.len())) {
            row.iter_mut().zip(query).for_each(|(to, value)| *to = value * scale);
        }
        let from = (bytemuck::cast_slice(rows), self.head);
        transpose_block(Isa::best(), [columns, self.head], from, (bytemuck::cast_slice_mut(queries), PANEL));
    }

    /// Writes values as `[panel of dimensions][key][PANEL]`.
    fn copy_values(&self, values: &mut Vec<f32>) {
        values.clear();
        for panel in (0..self.head).step_by(PANEL) {
            self.part(2).for_each(|value| values.extend_from_slice(&value[panel..panel + PANEL]));
        }
    }
}
