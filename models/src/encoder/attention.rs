//! Full attention inside each sequence of a ragged batch.

use std::ops::Range;

use super::pieces::PieceSequence;
use super::relative_bias::RelativeBias;
use crate::kernel::panel::{PANEL, panel_product};
use crate::kernel::softmax;
use crate::kernel::team::Base;
use crate::kernel::{Team, add};

/// Number of queries whose scores, softmax and values are computed together: one tile of the matrix multiplication,
/// whose scores stay in cache.
const QUERIES: usize = 24;

/// Number of scores that softmax takes at once.
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
}

/// Computes `out = softmax(Q Kᵀ / √head + bias) V` per sequence and head. `qkv` has shape (pieces, 3 · heads · head),
/// with queries, keys and values side by side, and `out` has shape (pieces, heads · head).
pub(super) fn attend(
    team: &Team,
    shape: &AttentionShape<'_>,
    sequences: &[PieceSequence],
    qkv: &[f32],
    out: &mut [f32],
) {
    let AttentionShape { heads, head, bias, reach } = *shape;
    let width = heads * head;
    assert!(head.is_multiple_of(PANEL) && qkv.len() == 3 * out.len(), "attention shapes");
    // Sequences have no padding between them, so that each one's first row is the sum of the lengths before it.
    let starts: Vec<usize> = sequences
        .iter()
        .scan(0, |next, sequence| {
            let start = *next;
            *next += sequence.len();
            Some(start)
        })
        .collect();
    let base = Base(out.as_mut_ptr());
    let len = out.len();
    team.sweep(sequences.len() * heads, &|claims| {
        // Allocated once per thread, because a short sequence takes less time than an allocation.
        let mut buffers = HeadBuffers::default();
        for item in claims {
            let sequence = item / heads;
            let at = item % heads * head;
            let rows = starts[sequence]..starts[sequence] + sequences[sequence].len();
            assert!(rows.end * width <= len, "attention rows");
            let qkv = &qkv[rows.start * 3 * width..rows.end * 3 * width];
            let bias = bias.map(|bias| (bias, item % heads));
            let one = AttentionHead { qkv, width, at, head, bias, reach };
            one.attend(&mut buffers, |row, values| {
                // SAFETY: inside `out`, as asserted, and no other work item writes this row of this head.
                let to = unsafe { std::slice::from_raw_parts_mut(base.at((rows.start + row) * width + at), head) };
                to.copy_from_slice(values);
            });
        }
    });
}

/// Buffers of one thread, reused from head to head.
#[derive(Debug, Default)]
struct HeadBuffers {
    /// Keys as `[panel of keys][dimension][PANEL]`.
    keys: Vec<f32>,
    /// Values as `[panel of dimensions][key][PANEL]`.
    values: Vec<f32>,
    /// Scores of [`QUERIES`] queries, in whole panels.
    scores: Vec<f32>,
    /// Outputs of [`QUERIES`] queries.
    output: Vec<f32>,
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
    fn attend(&self, buffers: &mut HeadBuffers, mut write: impl FnMut(usize, &[f32])) {
        let count = self.qkv.len() / (3 * self.width);
        let panels = count.div_ceil(PANEL);
        let HeadBuffers { keys, values, scores, output } = buffers;
        self.transpose_keys(panels, keys);
        self.copy_values(values);
        scores.resize(QUERIES * panels * PANEL, 0.0);
        output.resize(QUERIES * self.head, 0.0);
        let mut sums = [0.0; QUERIES * PANEL];
        for first in (0..count).step_by(QUERIES) {
            let rows = QUERIES.min(count - first);
            let queries = &self.qkv[first * 3 * self.width + self.at..];
            let sums = &mut sums[..rows * PANEL];
            for (panel, keys) in keys.chunks_exact(self.head * PANEL).enumerate() {
                sums.fill(0.0);
                panel_product(queries, 3 * self.width, keys, sums);
                copy_panel(sums, scores, panels * PANEL, panel * PANEL);
            }
            for (row, scores) in scores.chunks_exact_mut(panels * PANEL).take(rows).enumerate() {
                self.weigh(first + row, count, scores);
            }
            for (panel, values) in values.chunks_exact(count * PANEL).enumerate() {
                sums.fill(0.0);
                panel_product(scores, panels * PANEL, values, sums);
                copy_panel(sums, output, self.head, panel * PANEL);
            }
            for (row, output) in output.chunks_exact(self.head).take(rows).enumerate() {
                write(first + row, output);
            }
        }
    }

    /// Converts the scores of a query to softmax weights. Scores from `count` on belong to no key.
    fn weigh(&self, query: usize, count: usize, scores: &mut [f32]) {
        if let Some((bias, head)) = self.bias {
            add(&mut scores[..count], bias.row(head, query, count));
        }
        // Keys that are out of reach or padding must stay out of the sum. Whole vectors are faster than the exact
        // length, and give the same result.
        let near = self.near(query, count);
        let end = near.end.next_multiple_of(LANES);
        scores[..near.start].fill(0.0);
        scores[near.end..end].fill(f32::NEG_INFINITY);
        softmax(&mut scores[near.start..end]);
        scores[near.end..].fill(0.0);
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

    /// Writes keys as `[panel of keys][dimension][PANEL]`, scaled by 1 / √head and zero beyond the last key.
    fn transpose_keys(&self, panels: usize, keys: &mut Vec<f32>) {
        let scale = 1.0 / (self.head as f32).sqrt();
        keys.clear();
        keys.resize(panels * self.head * PANEL, 0.0);
        for (index, key) in self.part(1).enumerate() {
            let panel = &mut keys[index / PANEL * self.head * PANEL..][..self.head * PANEL];
            for (to, value) in panel.iter_mut().skip(index % PANEL).step_by(PANEL).zip(key) {
                *to = value * scale;
            }
        }
    }

    /// Writes values as `[panel of dimensions][key][PANEL]`.
    fn copy_values(&self, values: &mut Vec<f32>) {
        values.clear();
        for panel in (0..self.head).step_by(PANEL) {
            self.part(2).for_each(|value| values.extend_from_slice(&value[panel..panel + PANEL]));
        }
    }
}

/// Copies rows of [`PANEL`] sums to column `at` of rows of length `width`.
fn copy_panel(sums: &[f32], to: &mut [f32], width: usize, at: usize) {
    for (sums, to) in sums.chunks_exact(PANEL).zip(to.chunks_exact_mut(width)) {
        to[at..at + PANEL].copy_from_slice(sums);
    }
}
