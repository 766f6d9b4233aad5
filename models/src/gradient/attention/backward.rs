//! Backward pass of attention: tiles of keys against all queries that attend to them.
//!
//! A unit of work is a run of key tiles for one key and value head, and owns the gradients of those keys and
//! values. Query gradients receive contributions from several runs, so each run has its own partial sums, which a
//! second sweep adds in a fixed order.

use std::ops::Range;
use std::sync::PoisonError;

use super::forest::{Forest, tiles};
use super::rounded_tile::{RoundedTile, TokenVectors};
use super::{AttentionPass, AttentionPlan, SegmentPart, TILE, on_lanes};
use crate::kernel::attention::HeadLayout;
use crate::kernel::block::{Extent, Left, Right, Sum, multiply};
use crate::kernel::isa::Isa;
use crate::kernel::lanes::{LANES, Lanes};
use crate::kernel::team::{Base, Team};
use crate::kernel::worker_memory::FreeMemory;
use crate::kernel::{add, dot, scale, soft_cap};

/// Target number of work units: enough for the threads of a typical machine, few enough to keep the partial sums
/// small.
const UNITS: usize = 16;

/// A run of consecutive key tiles.
#[derive(Debug)]
pub(super) struct TileRun {
    parts: Vec<SegmentPart>,
    /// Range from the first to the last query that attends to any key of the run.
    queries: Range<usize>,
    /// Start of the run's sums in the memory for partial sums, in tokens of all heads.
    start: usize,
}

/// Splits the key tiles, in the order of the pack, into runs of about equal work.
pub(super) fn runs(forest: &Forest, parts: Vec<SegmentPart>, heads: HeadLayout) -> Vec<TileRun> {
    let work = |part: &SegmentPart| -> usize {
        forest.queries(part).iter().map(|range| range.len() * part.tokens.len()).sum()
    };
    let target = UNITS.div_ceil(heads.kv);
    let share = (parts.iter().map(work).sum::<usize>() / target).max(1);
    let mut runs: Vec<TileRun> = Vec::new();
    let mut done = 0;
    let mut number = None;
    for part in parts {
        let queries = forest.queries(&part);
        let end = queries.last().map_or(part.tokens.end, |range| range.end);
        // A share of few multiplications is rounded down by so much that its number may exceed the target by far.
        let next = (done / share).min(target);
        done += work(&part);
        match runs.last_mut() {
            Some(run) if number == Some(next) => {
                run.queries.end = run.queries.end.max(end);
                run.parts.push(part);
            }
            last => {
                let start = last.map_or(0, |run| run.start + run.queries.len());
                runs.push(TileRun { queries: part.tokens.start..end, parts: vec![part], start });
                number = Some(next);
            }
        }
    }
    runs
}

/// Size of the memory for partial sums, in tokens of all heads.
pub(super) fn partial(runs: &[TileRun]) -> usize {
    runs.last().map_or(0, |run| run.start + run.queries.len())
}

/// Maximum number of runs for a pack of `tokens` tokens: the target, plus one because the share of work is rounded
/// down.
pub(super) fn max_runs(tokens: usize, kv: usize) -> usize {
    (UNITS.div_ceil(kv) + 1).min(tokens)
}

pub(super) fn run(
    plan: &AttentionPlan,
    team: &Team,
    pass: AttentionPass<'_>,
    dout: &[f32],
    gradients: [&mut [f32]; 3],
) {
    let HeadLayout { query, kv, dim } = plan.heads;
    let [dq, dk, dv] = gradients;
    let mut offsets = vec![0.0; plan.tokens * query];
    team.rows(&mut offsets, 1, 1, &|first, offsets| {
        for (row, offset) in offsets.iter_mut().enumerate() {
            let at = (first + row) * dim..(first + row + 1) * dim;
            *offset = dot(&dout[at.clone()], &pass.out[at]);
        }
    });
    let mut partial = plan.partial.lock().unwrap_or_else(PoisonError::into_inner);
    partial.resize(self::partial(&plan.runs) * query * dim, 0.0);
    debug_assert_eq!(partial.len() + offsets.len(), plan.workspace_len(), "room");
    let sums = Base(partial.as_mut_ptr());
    let to_dk = Base(dk.as_mut_ptr());
    let to_dv = Base(dv.as_mut_ptr());
    team.sweep(plan.runs.len() * kv, &|claims| {
        let mut memory = team.floats(claims.worker(), KeyTile::memory_len(plan));
        let mut tile = KeyTile::new(plan, pass, (dout, &offsets), &mut memory.free());
        for item in claims {
            let run = &plan.runs[item / kv];
            let head = item % kv;
            let (start, len) =
                ((run.start * kv + head * run.queries.len()) * tile.width(), run.queries.len() * tile.width());
            // SAFETY: each run has its own range of the partial sums, and each head its own part of the range.
            let sums = unsafe { std::slice::from_raw_parts_mut(sums.at(start), len) };
            sums.fill(0.0);
            for part in &run.parts {
                tile.learn(part, head, run.queries.start, sums);
                for (row, token) in part.tokens.clone().enumerate() {
                    let at = (token * kv + head) * dim;
                    for (to, from) in [(&to_dk, &*tile.dk), (&to_dv, &*tile.dv)] {
                        // SAFETY: inside dk and dv, whose shapes `AttentionPlan::backward` has checked; the tiles
                        // are disjoint.
                        unsafe { std::slice::from_raw_parts_mut(to.at(at), dim) }
                            .copy_from_slice(&from[row * dim..][..dim]);
                    }
                }
            }
        }
    });
    let width = plan.heads.group() * dim;
    let partial = &*partial;
    team.rows(dq, query * dim, 16, &|first, rows| {
        for (row, dq) in rows.chunks_exact_mut(query * dim).enumerate() {
            dq.fill(0.0);
            for run in plan.runs.iter().filter(|run| run.queries.contains(&(first + row))) {
                for (head, dq) in dq.chunks_exact_mut(width).enumerate() {
                    let at = run.start * kv + head * run.queries.len() + first + row - run.queries.start;
                    add(dq, &partial[at * width..][..width]);
                }
            }
        }
    });
}

/// Up to `TILE` keys of one head, with the buffers for the queries that attend to them.
struct KeyTile<'a> {
    plan: &'a AttentionPlan,
    pass: AttentionPass<'a>,
    dout: &'a [f32],
    /// `dout · out`, shape (tokens, heads).
    offsets: &'a [f32],
    /// Scaled keys, shape (keys, dim).
    keys: &'a mut [f32],
    /// Scaled keys transposed, shape (dim, `TILE`), zero beyond the last key.
    keys_across: &'a mut [f32],
    /// Values transposed, shape (dim, `TILE`), zero beyond the last key.
    values_across: &'a mut [f32],
    /// Softmax weights and their gradients, shape (queries, `TILE`).
    weights: &'a mut [f32],
    slopes: &'a mut [f32],
    /// Gradients of keys and values, shape (keys, dim).
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    /// Buffers for the gradients of queries, keys and values, if their operands are rounded. `None` in `f32`.
    rounded: Option<RoundedTile<'a>>,
}

impl<'a> KeyTile<'a> {
    /// Number of values in the buffers of a tile.
    fn memory_len(plan: &AttentionPlan) -> usize {
        let dim = plan.heads.dim;
        TILE * (5 * dim + 2 * TILE) + plan.rounding.map_or(0, |_| RoundedTile::memory_len(dim))
    }

    fn new(
        plan: &'a AttentionPlan,
        pass: AttentionPass<'a>,
        (dout, offsets): (&'a [f32], &'a [f32]),
        free: &mut FreeMemory<'a>,
    ) -> Self {
        let [keys, keys_across, values_across, dk, dv] = std::array::from_fn(|_| free.floats(TILE * plan.heads.dim));
        let [weights, slopes] = std::array::from_fn(|_| free.floats(TILE * TILE));
        let rounded = plan.rounding.map(|support| RoundedTile::new(support, plan.heads.dim, free));
        Self { plan, pass, dout, offsets, keys, keys_across, values_across, weights, slopes, dk, dv, rounded }
    }

    /// Number of values per token in the sums of one key and value head.
    fn width(&self) -> usize {
        self.plan.heads.group() * self.plan.heads.dim
    }

    /// Computes dk and dv of the keys of `part`, and adds their contribution to the sums for dq, which begin at
    /// token `first`.
    fn learn(&mut self, part: &SegmentPart, head: usize, first: usize, sums: &mut [f32]) {
        let HeadLayout { kv, dim, .. } = self.plan.heads;
        let factor = self.pass.rule.scale;
        self.keys_across.fill(0.0);
        self.values_across.fill(0.0);
        for (row, token) in part.tokens.clone().enumerate() {
            let at = (token * kv + head) * dim;
            for d in 0..dim {
                let key = self.pass.k[at + d] * factor;
                self.keys[row * dim + d] = key;
                self.keys_across[d * TILE + row] = key;
                self.values_across[d * TILE + row] = self.pass.v[at + d];
            }
        }
        if let Some(rounded) = &mut self.rounded {
            rounded.take_keys(TokenVectors { from: self.keys, stride: dim, count: part.tokens.len(), dim });
        }
        self.dk.fill(0.0);
        self.dv.fill(0.0);
        for queries in tiles(&self.plan.forest.queries(part)) {
            for member in 0..self.plan.heads.group() {
                self.visit_keys(part, &queries, head * self.plan.heads.group() + member);
                let at = (queries.start - first) * self.width() + member * dim;
                let extent = Extent { rows: queries.len(), inner: part.tokens.len(), columns: dim };
                let to = (&mut sums[at..], self.width());
                if let Some(rounded) = &mut self.rounded {
                    rounded.add_dq(extent, self.slopes, to);
                    continue;
                }
                let left = Left { from: self.slopes, row: TILE, step: 1 };
                multiply(self.plan.isa, extent, left, Right { from: self.keys, stride: dim }, to, Sum::Add);
            }
        }
        scale(self.dk, factor);
    }

    /// Computes the softmax weights of some queries of one query head and their gradients, and adds their
    /// contribution to dk and dv.
    fn visit_keys(&mut self, part: &SegmentPart, queries: &Range<usize>, head: usize) {
        let (isa, HeadLayout { query, dim, .. }) = (self.plan.isa, self.plan.heads);
        let width = query * dim;
        let first = (queries.start * query + head) * dim;
        let own = &self.pass.q[first..];
        let outs = &self.dout[first..];
        let rows = queries.len();
        let keys = part.tokens.len();
        let columns = keys.next_multiple_of(LANES);
        let extent = Extent { rows, inner: dim, columns };
        for (from, right, to) in
            [(own, &*self.keys_across, &mut *self.weights), (outs, &*self.values_across, &mut *self.slopes)]
        {
            let left = Left { from, row: width, step: 1 };
            multiply(isa, extent, left, Right { from: right, stride: TILE }, (to, TILE), Sum::Set);
        }
        self.differentiate(part, queries, head, columns);
        let extent = Extent { rows: keys, inner: rows, columns: dim };
        for (from, right, to) in [(&*self.weights, outs, &mut *self.dv), (&*self.slopes, own, &mut *self.dk)] {
            if let Some(rounded) = &mut self.rounded {
                let vectors = TokenVectors { from: right, stride: width, count: rows, dim };
                rounded.add(extent, (from, vectors), to);
                continue;
            }
            let left = Left { from, row: 1, step: TILE };
            multiply(isa, extent, left, Right { from: right, stride: width }, (to, dim), Sum::Add);
        }
    }

    /// Converts the scores of some queries of one query head into softmax weights, and the gradients of these into
    /// gradients of the scores.
    fn differentiate(&mut self, part: &SegmentPart, queries: &Range<usize>, head: usize, columns: usize) {
        let isa = self.plan.isa;
        let query = self.plan.heads.query;
        let keys = part.tokens.len();
        for (row, token) in queries.clone().enumerate() {
            let weights = &mut self.weights[row * TILE..][..columns];
            let slopes = &mut self.slopes[row * TILE..][..columns];
            let at = token * query + head;
            let lse = self.pass.lse[at];
            let offset = self.offsets[at];
            // Causal mask: a query attends to no later key of its own segment.
            let seen = (token + 1 - part.tokens.start).min(keys);
            let hidden = self.pass.rule.window.map_or(0, |window| {
                let first = self.plan.positions[part.tokens.start];
                (self.plan.positions[token] + 1).saturating_sub(window + first).min(keys)
            });
            let mut limited = [0.0; TILE];
            if let Some(cap) = self.pass.rule.cap {
                soft_cap(weights, cap);
                limited[..columns].copy_from_slice(weights);
            }
            // SAFETY: `isa` names instructions that the CPU has; both rows are whole vectors of equal number.
            unsafe {
                on_lanes!(isa, differentiate(
                    weights: &mut [f32] = weights, slopes: &mut [f32] = slopes, lse: f32 = lse, offset: f32 = offset
                ));
            }
            if let Some(cap) = self.pass.rule.cap {
                let slopes = self.slopes[row * TILE..][..columns].iter_mut();
                slopes.zip(limited).for_each(|(slope, score)| *slope *= 1.0 - (score / cap) * (score / cap));
            }
            for values in [&mut *self.weights, &mut *self.slopes] {
                values[row * TILE..][seen..columns].fill(0.0);
                values[row * TILE..][..hidden].fill(0.0);
            }
        }
    }
}

/// Converts a query's scores into softmax weights, and the gradients of the weights into gradients of the scores.
///
/// # Safety
/// The CPU must support the instruction set of `L`.
#[inline(always)]
unsafe fn differentiate<L: Lanes>(weights: &mut [f32], slopes: &mut [f32], lse: f32, offset: f32) {
    for (weights, slopes) in weights.chunks_exact_mut(LANES).zip(slopes.chunks_exact_mut(LANES)) {
        // SAFETY: whole vectors, and the instruction set of `L` is available.
        unsafe {
            let weight = L::load(weights.as_ptr()).add(L::splat(-lse)).exp();
            let slope = L::load(slopes.as_ptr()).add(L::splat(-offset)).mul(weight);
            weight.store(weights.as_mut_ptr());
            slope.store(slopes.as_mut_ptr());
        }
    }
}
