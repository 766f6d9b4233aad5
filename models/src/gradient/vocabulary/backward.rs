//! Backward pass of the vocabulary projection: gradients of hidden states and of the projection from the slopes of
//! some targets.

use super::distribution::{Slopes, differentiate};
use super::{ROWS, TargetRow, VocabularyHead};
use crate::kernel::add;
use crate::kernel::block::{Extent, Left, Right, Sum, multiply};
use crate::kernel::directed::{DirectedMatrix, Direction};
use crate::kernel::isa::Isa;
use crate::kernel::lanes::LANES;
use crate::kernel::layout::PANEL;
use crate::kernel::team::{Base, Team, share};
use crate::kernel::term_tile::{TermTile, TileBuffers};

/// Number of vocabulary entries in a tile, which fits the first-level cache together with a panel of the
/// projection.
const ENTRIES: usize = 192;
/// Distance between rows of a tile, in values. Not a power of two, so rows do not collide in the cache.
const STRIDE: usize = ENTRIES + LANES;
/// Number of parts of the vocabulary with separate sums. Fixed, so results do not depend on the number of
/// threads.
const SHARES: usize = 16;

/// Number of values in the working memory of [`run`] for `rows` rows.
pub(super) fn workspace_len(vocabulary: usize, width: usize, rows: usize) -> usize {
    let shares = SHARES.min(vocabulary.div_ceil(ENTRIES));
    shares * rows * width.next_multiple_of(PANEL) + rows * width.next_multiple_of(LANES)
}

/// Computes both gradients. Overwrites `dhidden` and adds to `grad`.
pub(super) fn run(
    isa: Isa,
    team: &Team,
    head: VocabularyHead<'_>,
    (rows, logits): (&[TargetRow], &[f32]),
    hidden: &[f32],
    dhidden: &mut [f32],
    grad: Option<&mut [f32]>,
) {
    let vocabulary = head.weights.out();
    let width = head.weights.inn();
    assert!(grad.as_ref().is_none_or(|grad| grad.len() == vocabulary * width), "gradient of the head");
    assert!(logits.len() == rows.len() * vocabulary && hidden.len() == rows.len() * width, "logits and hidden states");
    let tiles = vocabulary.div_ceil(ENTRIES);
    let shares = SHARES.min(tiles);
    let padded = width.next_multiple_of(PANEL);
    let matrix = DirectedMatrix::new(head.weights, Direction::Backward);
    let states = TermTile { isa, matrix, rounded: head.rounded };
    let len = states.sums_len(rows.len());
    let mut partial = vec![0.0; shares * len];
    let sums = Base(partial.as_mut_ptr());
    let grad = grad.map(|grad| Base(grad.as_mut_ptr()));
    let task = BackwardTask { isa, vocabulary, width, cap: head.cap, rows, logits, hidden: aligned(hidden, width) };
    debug_assert_eq!(partial.len() + task.hidden.len(), workspace_len(vocabulary, width, rows.len()), "room");
    team.sweep(shares, &|claims| {
        let tiles_len = TileBuffers::memory_len(rows.len(), ENTRIES);
        let mut memory = team.floats(claims.worker(), ROWS * STRIDE + padded + tiles_len);
        let mut free = memory.free();
        let mut buffers = TileBuffers::new(rows.len(), ENTRIES, &mut free);
        let slopes = free.floats(ROWS * STRIDE);
        let row = free.floats(padded);
        for index in claims {
            // SAFETY: each share has its own part of the partial sums.
            let sums = unsafe { std::slice::from_raw_parts_mut(sums.at(index * len), len) };
            for tile in share(tiles, index, shares) {
                let entries = tile * ENTRIES..((tile + 1) * ENTRIES).min(vocabulary);
                task.slopes(entries.start, entries.len(), slopes);
                states.add((slopes, STRIDE), rows.len(), entries.clone(), &mut buffers, sums);
                if let Some(grad) = &grad {
                    let at = entries.start * width;
                    // SAFETY: inside the gradient, whose shape was asserted; tiles have disjoint rows of it.
                    let grad = unsafe { std::slice::from_raw_parts_mut(grad.at(at), entries.len() * width) };
                    task.weights(slopes, row, grad);
                }
            }
        }
    });
    let partial = &partial;
    team.rows(dhidden, width, 1, &|first, part| {
        part.fill(0.0);
        for (row, dhidden) in part.chunks_exact_mut(width).enumerate() {
            for sums in partial.chunks_exact(len) {
                for (panel, dhidden) in dhidden.chunks_mut(PANEL).enumerate() {
                    let width = dhidden.len();
                    add(dhidden, &sums[(panel * rows.len() + first + row) * PANEL..][..width]);
                }
            }
        }
    });
}

/// Rows of `width` values, padded with zeros to whole vectors.
fn aligned(rows: &[f32], width: usize) -> Vec<f32> {
    let padded = width.next_multiple_of(LANES);
    let mut to = vec![0.0; rows.len() / width * padded];
    for (to, row) in to.chunks_exact_mut(padded).zip(rows.chunks_exact(width)) {
        to[..width].copy_from_slice(row);
    }
    to
}

struct BackwardTask<'a> {
    isa: Isa,
    vocabulary: usize,
    width: usize,
    /// Soft limit of the logits.
    cap: Option<f32>,
    rows: &'a [TargetRow],
    logits: &'a [f32],
    /// Hidden states, shape (rows, hidden rounded up to 16).
    hidden: Vec<f32>,
}

impl BackwardTask<'_> {
    /// Writes the slopes of `count` logits of each row, shape (rows, `STRIDE`).
    fn slopes(&self, first: usize, count: usize, to: &mut [f32]) {
        let vocabulary = self.vocabulary;
        for (index, (row, to)) in self.rows.iter().zip(to.chunks_exact_mut(STRIDE)).enumerate() {
            let logits = &self.logits[index * vocabulary + first..][..count];
            let a = -row.slope.logprob - row.slope.entropy * row.score.entropy;
            let b = -row.slope.entropy;
            let slopes = Slopes { normalizer: row.normalizer, a, b };
            differentiate(self.isa, logits, slopes, &mut to[..count / LANES * LANES]);
            for (to, logit) in to[..count].iter_mut().zip(logits).skip(count / LANES * LANES) {
                let log = logit - row.normalizer;
                *to = log.exp() * (a + b * log);
            }
            if (first..first + count).contains(&row.id) {
                to[row.id - first] += row.slope.logprob;
            }
            let drawn = &row.distillation_slopes[row.distillation_slopes.partition_point(|&(id, _)| id < first)..];
            for &(id, slope) in drawn.iter().take_while(|&&(id, _)| id < first + count) {
                to[id - first] += slope;
            }
            if let Some(cap) = self.cap {
                let factor = |logit: &f32| 1.0 - (logit / cap) * (logit / cap);
                to[..count].iter_mut().zip(logits).for_each(|(slope, logit)| *slope *= factor(logit));
            }
        }
    }

    /// Computes `grad += slopesᵀ · hidden` for the rows of the projection's gradient that belong to the tile's
    /// entries.
    fn weights(&self, slopes: &[f32], row: &mut [f32], grad: &mut [f32]) {
        let width = self.width;
        let padded = width.next_multiple_of(LANES);
        let right = Right { from: &self.hidden, stride: padded };
        if width == padded {
            let extent = Extent { rows: grad.len() / width, inner: self.rows.len(), columns: width };
            let left = Left { from: slopes, row: 1, step: STRIDE };
            return multiply(self.isa, extent, left, right, (grad, width), Sum::Add);
        }
        for (entry, grad) in grad.chunks_exact_mut(width).enumerate() {
            let extent = Extent { rows: 1, inner: self.rows.len(), columns: padded };
            let left = Left { from: &slopes[entry..], row: 1, step: STRIDE };
            multiply(self.isa, extent, left, right, (row, padded), Sum::Set);
            add(grad, &row[..width]);
        }
    }
}
