//! Inner loops of attention: a few query rows against the keys and values of one head, one run of blocks at a time.
//!
//! Softmax is computed online (Milakov and Gimelshein 2018): the weighted sum of values is rescaled whenever a
//! larger score appears, so each block of keys and values is read once per tile.

use std::ops::Range;

use super::stored::{Stored, key_scales};
use crate::batch::BLOCK;
use crate::kernel::isa::Isa;
use crate::kernel::lanes::{LANES, Lanes};
use crate::kernel::prefetch::prefetch_line;
use crate::kernel::soft_cap;

/// Number of blocks whose scores are computed before their values are used.
pub(super) const RUN: usize = 8;
/// Number of tokens in a run: the row length of the score matrix.
pub(super) const RUN_TOKENS: usize = RUN * BLOCK;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Queries of one head with the buffers for their scores and sums.
pub(super) struct AttentionTile<'a> {
    /// Scaled queries, shape (rows, head_dim). Row `i` has the position `position + i / group`. If only keys before
    /// `position` are attended, rows may have any positions from there on.
    pub(super) queries: &'a [f32],
    /// Number of query heads that share this key and value head.
    pub(super) group: usize,
    /// Position of the first row.
    pub(super) position: usize,
    /// Number of positions that a row sees, counting its own. `None` means all earlier ones.
    pub(super) window: Option<usize>,
    /// Soft limit of the scores.
    pub(super) cap: Option<f32>,
    /// Width of a head, a multiple of [`LANES`].
    pub(super) head_dim: usize,
    /// Scratch for scores, shape (rows, [`RUN_TOKENS`]).
    pub(super) scores: &'a mut [f32],
    /// Weighted sums of values, shape (rows, head_dim).
    pub(super) sums: &'a mut [f32],
    /// Largest score so far, per row.
    pub(super) largest: &'a mut [f32],
    /// Sum of the exponentials so far, per row.
    pub(super) totals: &'a mut [f32],
}

/// Keys and values of one head in one layer, block by block.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a, S> {
    /// Layer's part of the cache.
    pub(super) data: &'a [S],
    /// Block table of the sequence.
    pub(super) table: &'a [u32],
    /// Distance between blocks, in elements.
    pub(super) stride: usize,
    /// Offset of this head's keys in a block; its values follow, and their scales.
    pub(super) offset: usize,
    /// Number of this head's elements in a block.
    pub(super) len: usize,
    /// First position to read, a multiple of [`RUN_TOKENS`].
    pub(super) start: usize,
    /// End of the visible positions.
    pub(super) end: usize,
}

/// Pointers to this head's part of the blocks of a run.
#[derive(Clone, Copy)]
struct BlockRun<S> {
    heads: [*const S; RUN],
    blocks: usize,
    tokens: usize,
}

impl<S> Blocks<'_, S> {
    /// Run that begins at position `first`.
    #[inline(always)]
    fn run(&self, first: usize) -> BlockRun<S> {
        let tokens = (self.end - first).min(RUN_TOKENS);
        let blocks = tokens.div_ceil(BLOCK);
        let mut heads = [self.data.as_ptr(); RUN];
        for (head, &block) in heads.iter_mut().zip(&self.table[first / BLOCK..first / BLOCK + blocks]) {
            let start = block as usize * self.stride + self.offset;
            *head = self.data[start..start + self.len].as_ptr();
        }
        BlockRun { heads, blocks, tokens }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn attend_avx512<S: Stored>(tile: &mut AttentionTile<'_>, blocks: Blocks<'_, S>, after: Blocks<'_, S>) {
    // SAFETY: guaranteed by the caller.
    unsafe { tile.pass::<std::arch::x86_64::__m512, S>(blocks, after) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn attend_avx2<S: Stored>(tile: &mut AttentionTile<'_>, blocks: Blocks<'_, S>, after: Blocks<'_, S>) {
    // SAFETY: guaranteed by the caller.
    unsafe { tile.pass::<[std::arch::x86_64::__m256; 2], S>(blocks, after) }
}

impl<'a> AttentionTile<'a> {
    /// Divides the sums by the totals: the output of the attention, shape (rows, head_dim).
    pub(super) fn finish(self) -> &'a [f32] {
        for (row, &total) in self.sums.chunks_exact_mut(self.head_dim).zip(self.totals.iter()) {
            row.iter_mut().for_each(|value| *value /= total);
        }
        self.sums
    }

    fn rows(&self) -> usize {
        self.largest.len()
    }

    /// Some of the rows, the first of them at `position`.
    pub(super) fn part(&mut self, rows: Range<usize>, position: usize) -> AttentionTile<'_> {
        let values = rows.start * self.head_dim..rows.end * self.head_dim;
        AttentionTile {
            queries: &self.queries[values.clone()],
            group: self.group,
            position,
            window: self.window,
            cap: self.cap,
            head_dim: self.head_dim,
            scores: self.scores,
            sums: &mut self.sums[values],
            largest: &mut self.largest[rows.clone()],
            totals: &mut self.totals[rows],
        }
    }

    /// Adds the weighted values of some blocks to the sums. Meanwhile prefetches the blocks of `after`, which the same
    /// thread processes next.
    ///
    /// # Panics
    /// If a block named in a table lies outside the cache, or a slice is too short.
    pub(super) fn attend<S: Stored>(&mut self, isa: Isa, blocks: Blocks<'_, S>, after: Blocks<'_, S>) {
        let rows = self.rows();
        assert!(self.head_dim.is_multiple_of(LANES), "head size is no multiple of {LANES}");
        assert!(self.queries.len() >= rows * self.head_dim && self.sums.len() == rows * self.head_dim);
        assert!(self.scores.len() >= rows * RUN_TOKENS && self.totals.len() == rows);
        assert!(blocks.len == 2 * BLOCK * self.head_dim + S::SCALES, "one head's keys and values");
        // SAFETY: lengths as asserted; blocks are sliced with bounds checks; `isa` names instructions that the CPU
        // has.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => attend_avx512(self, blocks, after),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => attend_avx2(self, blocks, after),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => self.pass::<crate::kernel::neon::Floats, S>(blocks, after),
                Isa::Portable => self.pass::<[f32; LANES], S>(blocks, after),
            }
        }
    }

    /// Processes all runs of blocks.
    ///
    /// # Safety
    /// The instruction set of `L` must be available, and slices must have the lengths stated at the fields.
    #[inline(always)]
    unsafe fn pass<L: Lanes, S: Stored>(&mut self, blocks: Blocks<'_, S>, after: Blocks<'_, S>) {
        let mut first = blocks.start;
        let mut run = blocks.run(first);
        while first < blocks.end {
            let next = first + run.tokens;
            let ahead = if next < blocks.end { blocks.run(next) } else { after.run(after.start) };
            // SAFETY: guaranteed by the caller.
            unsafe {
                self.score::<L, S>(&run);
                self.softmax_weights::<L, S>(first, &run);
                self.gather::<L, S>(&run, &ahead);
            }
            first = next;
            run = ahead;
        }
    }

    /// Computes the scores of every row against every token of a run.
    #[inline(always)]
    unsafe fn score<L: Lanes, S: Stored>(&mut self, run: &BlockRun<S>) {
        let mut row = 0;
        while row < self.rows() {
            // SAFETY: the requirements of `pass`; rows `row..row + R` exist.
            unsafe {
                row += match self.rows() - row {
                    1 => self.score_rows::<L, S, 1>(row, run),
                    2 => self.score_rows::<L, S, 2>(row, run),
                    3 => self.score_rows::<L, S, 3>(row, run),
                    _ => self.score_rows::<L, S, 4>(row, run),
                };
            }
        }
    }

    #[inline(always)]
    unsafe fn score_rows<L: Lanes, S: Stored, const R: usize>(&mut self, row: usize, run: &BlockRun<S>) -> usize {
        // SAFETY: the requirements of `pass`; `block + N <= run.blocks`.
        unsafe {
            let query = self.queries.as_ptr().add(row * self.head_dim);
            let scores = self.scores.as_mut_ptr().add(row * RUN_TOKENS);
            // Only the first rows prefetch the values, which the other rows then find in cache.
            let ahead = if row == 0 { BLOCK * self.head_dim } else { 0 };
            let mut block = 0;
            while block < run.blocks {
                let keys = TransposedKeys { heads: &run.heads[block..], head_dim: self.head_dim, ahead };
                let to = scores.add(block * BLOCK);
                block += match run.blocks - block {
                    left if left == 1 || !L::WIDE => keys.dot::<L, R, 1>(query, to),
                    2 | 3 => keys.dot::<L, R, 2>(query, to),
                    _ => keys.dot::<L, R, 4>(query, to),
                };
            }
        }
        R
    }

    /// Converts scores into softmax weights relative to the largest score so far, times the scales of the values, and
    /// rescales the earlier sums.
    #[inline(always)]
    unsafe fn softmax_weights<L: Lanes, S: Stored>(&mut self, first: usize, run: &BlockRun<S>) {
        let padded = run.tokens.next_multiple_of(LANES);
        for row in 0..self.rows() {
            let scores = &mut self.scores[row * RUN_TOKENS..row * RUN_TOKENS + padded];
            let end = self.position + row / self.group + 1;
            let visible = end.saturating_sub(first).min(padded);
            let hidden = self.window.map_or(0, |window| end.saturating_sub(window).saturating_sub(first));
            if hidden >= visible {
                // Without this, a row whose window begins after its first runs would subtract infinities there.
                scores.fill(0.0);
                continue;
            }
            if let Some(cap) = self.cap {
                soft_cap(&mut scores[..visible], cap);
            }
            scores[..hidden].fill(f32::NEG_INFINITY);
            // Causal mask. Slots beyond the row's own position may also hold leftovers of another sequence.
            scores[visible..].fill(f32::NEG_INFINITY);
            // SAFETY: whole vectors inside `scores` and `sums`; the caller guarantees the instruction set.
            unsafe {
                let mut largest = L::splat(self.largest[row]);
                for vector in scores.chunks_exact(LANES) {
                    largest = largest.max(L::load(vector.as_ptr()));
                }
                let largest = largest.largest();
                let mut total = L::splat(0.0);
                for (vector, head) in scores.chunks_exact_mut(LANES).zip(run.heads) {
                    let weight = L::load(vector.as_ptr()).add(L::splat(-largest)).exp();
                    total = total.add(weight);
                    let scales = key_scales(head, self.head_dim).wrapping_add(BLOCK);
                    S::scaled(weight, scales).store(vector.as_mut_ptr());
                }
                if largest > self.largest[row] {
                    let keep = (self.largest[row] - largest).exp();
                    self.totals[row] *= keep;
                    for vector in self.sums[row * self.head_dim..][..self.head_dim].chunks_exact_mut(LANES) {
                        L::load(vector.as_ptr()).mul(L::splat(keep)).store(vector.as_mut_ptr());
                    }
                    self.largest[row] = largest;
                }
                self.totals[row] += total.total();
            }
        }
    }

    /// Adds the weighted values of a run to the sums, and prefetches the keys of the run `ahead`.
    #[inline(always)]
    unsafe fn gather<L: Lanes, S: Stored>(&mut self, run: &BlockRun<S>, ahead: &BlockRun<S>) {
        let mut row = 0;
        while row < self.rows() {
            let ahead = if row == 0 { ahead } else { run };
            // SAFETY: the requirements of `pass`; rows `row..row + R` exist.
            unsafe {
                row += match self.rows() - row {
                    1 => self.gather_rows::<L, S, 1>(row, run, ahead),
                    2 => self.gather_rows::<L, S, 2>(row, run, ahead),
                    3 => self.gather_rows::<L, S, 3>(row, run, ahead),
                    _ => self.gather_rows::<L, S, 4>(row, run, ahead),
                };
            }
        }
    }

    #[inline(always)]
    unsafe fn gather_rows<L: Lanes, S: Stored, const R: usize>(
        &mut self,
        row: usize,
        run: &BlockRun<S>,
        ahead: &BlockRun<S>,
    ) -> usize {
        let mut column = 0;
        while column < self.head_dim {
            // SAFETY: the requirements of `pass`; the vectors from `column` on lie inside a head.
            unsafe {
                let weights = self.scores.as_ptr().add(row * RUN_TOKENS);
                let sums = self.sums.as_mut_ptr().add(row * self.head_dim + column);
                let values = ValueColumns { run, ahead, head_dim: self.head_dim, column };
                column += if L::WIDE && self.head_dim - column >= 4 * LANES {
                    values.add::<L, R, 4>(weights, sums)
                } else {
                    values.add::<L, R, 1>(weights, sums)
                };
            }
        }
        R
    }
}

/// Transposed keys of some blocks, shape (head_dim, [`BLOCK`]): one vector holds one dimension of a whole block.
struct TransposedKeys<'a, S> {
    heads: &'a [*const S],
    head_dim: usize,
    /// Distance from each vector of keys to the part of the values to prefetch.
    ahead: usize,
}

impl<S: Stored> TransposedKeys<'_, S> {
    /// Computes `R` rows of scores against `N` blocks and returns `N`.
    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[inline(always)]
    unsafe fn dot<L: Lanes, const R: usize, const N: usize>(&self, query: *const f32, to: *mut f32) -> usize {
        let heads: [*const S; N] = std::array::from_fn(|n| self.heads[n]);
        // SAFETY: the caller provides `R` queries of `head_dim` values and room for `R` rows of scores.
        unsafe {
            let mut sums = [[L::splat(0.0); N]; R];
            for d in 0..self.head_dim {
                let mut key = [L::splat(0.0); N];
                for n in 0..N {
                    let at = heads[n].add(d * BLOCK);
                    if d.is_multiple_of(LINE / (BLOCK * size_of::<S>())) {
                        prefetch_line(at.wrapping_add(self.ahead).cast());
                    }
                    key[n] = S::load::<L>(at);
                }
                for r in 0..R {
                    let value = L::splat(*query.add(r * self.head_dim + d));
                    for n in 0..N {
                        sums[r][n] = key[n].fma(value, sums[r][n]);
                    }
                }
            }
            for n in 0..N {
                let scales = key_scales(heads[n], self.head_dim);
                for r in 0..R {
                    S::scaled(sums[r][n], scales).store(to.add(r * RUN_TOKENS + n * BLOCK));
                }
            }
        }
        N
    }
}

/// Some columns of a run's values, which follow the keys of each block, shape ([`BLOCK`], head_dim).
struct ValueColumns<'a, S> {
    run: &'a BlockRun<S>,
    /// Run whose keys to prefetch; they occupy as much memory as the values.
    ahead: &'a BlockRun<S>,
    head_dim: usize,
    column: usize,
}

impl<S: Stored> ValueColumns<'_, S> {
    /// Adds to `R` rows and `C` vectors of columns of the sums, and returns the number of columns.
    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[inline(always)]
    unsafe fn add<L: Lanes, const R: usize, const C: usize>(&self, weights: *const f32, to: *mut f32) -> usize {
        // SAFETY: the caller provides `R` rows of weights and of sums, and `C` vectors from `column` on inside a
        // head.
        unsafe {
            let mut sums = [[L::splat(0.0); C]; R];
            for r in 0..R {
                for c in 0..C {
                    sums[r][c] = L::load(to.add(r * self.head_dim + c * LANES));
                }
            }
            for block in 0..self.run.blocks {
                let values = self.run.heads[block].add(BLOCK * self.head_dim + self.column);
                let ahead = self.ahead.heads[block];
                if S::SCALES > 0 {
                    prefetch_line(key_scales(ahead, self.head_dim).cast());
                }
                let ahead = ahead.wrapping_add(self.column);
                // Stops at the last token: later slots are unwritten, and 0 · NaN is NaN.
                for token in 0..(self.run.tokens - block * BLOCK).min(BLOCK) {
                    let mut value = [L::splat(0.0); C];
                    for c in 0..C {
                        let place = token * self.head_dim + c * LANES;
                        if (c * LANES * size_of::<S>()).is_multiple_of(LINE) {
                            prefetch_line(ahead.wrapping_add(place).cast());
                        }
                        value[c] = S::load::<L>(values.add(place));
                    }
                    for r in 0..R {
                        let weight = L::splat(*weights.add(r * RUN_TOKENS + block * BLOCK + token));
                        for c in 0..C {
                            sums[r][c] = value[c].fma(weight, sums[r][c]);
                        }
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    sums[r][c].store(to.add(r * self.head_dim + c * LANES));
                }
            }
        }
        C * LANES
    }
}
