//! Tiles of keys against all queries that see them.
//!
//! A unit of work is a run of tiles of keys and one key and value head: it owns their gradients. Gradients of queries
//! come from several runs, so each run has its own sums of them, and a second sweep adds these up in order.

use std::ops::Range;
use std::sync::PoisonError;

use super::forest::{Forest, tiles};
use super::{Part, Pass, Plan, TILE, on_lanes};
use crate::kernel::attention::Heads;
use crate::kernel::block::{Extent, Left, Right, Sum, multiply};
use crate::kernel::isa::Isa;
use crate::kernel::lanes::{LANES, Lanes};
use crate::kernel::team::{Base, Team};
use crate::kernel::{add, dot, scale};

/// Units of work to aim at: enough for the threads of a usual machine, few enough to keep the partial sums small.
const UNITS: usize = 16;

/// Consecutive tiles of keys.
#[derive(Debug)]
pub(super) struct Run {
    parts: Vec<Part>,
    /// From the first to the last query that sees any of them.
    queries: Range<usize>,
    /// Where its sums begin in the memory for partial sums, in tokens of all heads.
    start: usize,
}

/// Cuts the tiles of keys, in the order of the pack, into runs of about the same work.
pub(super) fn runs(forest: &Forest, parts: Vec<Part>, heads: Heads) -> Vec<Run> {
    let work =
        |part: &Part| -> usize { forest.queries(part).iter().map(|range| range.len() * part.tokens.len()).sum() };
    let share = (parts.iter().map(work).sum::<usize>() / UNITS.div_ceil(heads.kv)).max(1);
    let (mut runs, mut done): (Vec<Run>, _) = (Vec::new(), 0);
    let mut number = None;
    for part in parts {
        let queries = forest.queries(&part);
        let end = queries.last().map_or(part.tokens.end, |range| range.end);
        let next = done / share;
        done += work(&part);
        match runs.last_mut() {
            Some(run) if number == Some(next) => {
                run.queries.end = run.queries.end.max(end);
                run.parts.push(part);
            }
            last => {
                let start = last.map_or(0, |run| run.start + run.queries.len());
                runs.push(Run { queries: part.tokens.start..end, parts: vec![part], start });
                number = Some(next);
            }
        }
    }
    runs
}

/// Tokens of all heads in the memory for partial sums.
pub(super) fn partial(runs: &[Run]) -> usize {
    runs.last().map_or(0, |run| run.start + run.queries.len())
}

/// The most runs that a pack of `tokens` tokens is cut into: rounding the share of work down makes one more than aimed at.
/// Packs of a few tokens, where the share is a few products, may have more.
pub(super) fn most_runs(tokens: usize, kv: usize) -> usize {
    (UNITS.div_ceil(kv) + 1).min(tokens)
}

pub(super) fn run(plan: &Plan, team: &Team, pass: Pass<'_>, dout: &[f32], gradients: [&mut [f32]; 3]) {
    let Heads { query, kv, dim } = plan.heads;
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
    debug_assert_eq!(partial.len() + offsets.len(), plan.room(), "room");
    let sums = Base(partial.as_mut_ptr());
    let (to_dk, to_dv) = (Base(dk.as_mut_ptr()), Base(dv.as_mut_ptr()));
    team.sweep(plan.runs.len() * kv, &|claims| {
        let mut tile = Tile::new(plan, pass, dout, &offsets);
        for item in claims {
            let (run, head) = (&plan.runs[item / kv], item % kv);
            let (start, len) =
                ((run.start * kv + head * run.queries.len()) * tile.width(), run.queries.len() * tile.width());
            // SAFETY: each run has the place of its queries in the partial sums, and each head a part of it.
            let sums = unsafe { std::slice::from_raw_parts_mut(sums.at(start), len) };
            sums.fill(0.0);
            for part in &run.parts {
                tile.learn(part, head, run.queries.start, sums);
                for (row, token) in part.tokens.clone().enumerate() {
                    let at = (token * kv + head) * dim;
                    for (to, from) in [(&to_dk, &tile.dk), (&to_dv, &tile.dv)] {
                        // SAFETY: inside dk and dv, whose shapes `Plan::backward` has checked; parts are disjoint.
                        unsafe { std::slice::from_raw_parts_mut(to.at(at), dim) }
                            .copy_from_slice(&from[row * dim..][..dim]);
                    }
                }
            }
        }
    });
    let (width, partial) = (plan.heads.group() * dim, &*partial);
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

/// Up to `TILE` keys of one head, and everything that is written while the queries that see them go by.
struct Tile<'a> {
    plan: &'a Plan,
    pass: Pass<'a>,
    dout: &'a [f32],
    /// `dout · out`, shape (tokens, heads).
    offsets: &'a [f32],
    /// Keys, scaled, shape (keys, dim).
    keys: Vec<f32>,
    /// The same transposed, shape (dim, `TILE`), with zeros beyond the last.
    keys_across: Vec<f32>,
    /// Values, likewise.
    values_across: Vec<f32>,
    /// Softmax weights and their gradients, shape (queries, `TILE`).
    weights: Vec<f32>,
    slopes: Vec<f32>,
    /// Gradients of keys and values, shape (keys, dim).
    dk: Vec<f32>,
    dv: Vec<f32>,
}

impl<'a> Tile<'a> {
    fn new(plan: &'a Plan, pass: Pass<'a>, dout: &'a [f32], offsets: &'a [f32]) -> Self {
        let [keys, keys_across, values_across, dk, dv] = std::array::from_fn(|_| vec![0.0; TILE * plan.heads.dim]);
        let [weights, slopes] = std::array::from_fn(|_| vec![0.0; TILE * TILE]);
        Self { plan, pass, dout, offsets, keys, keys_across, values_across, weights, slopes, dk, dv }
    }

    /// Values per token in the sums of one key and value head.
    fn width(&self) -> usize {
        self.plan.heads.group() * self.plan.heads.dim
    }

    /// Computes dk and dv of the keys of `part`, and adds their share to the sums for dq, which begin with token `first`.
    fn learn(&mut self, part: &Part, head: usize, first: usize, sums: &mut [f32]) {
        let Heads { kv, dim, .. } = self.plan.heads;
        let factor = 1.0 / (dim as f32).sqrt();
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
        self.dk.fill(0.0);
        self.dv.fill(0.0);
        for queries in tiles(&self.plan.forest.queries(part)) {
            for member in 0..self.plan.heads.group() {
                self.look(part, &queries, head * self.plan.heads.group() + member);
                let at = (queries.start - first) * self.width() + member * dim;
                let extent = Extent { rows: queries.len(), inner: part.tokens.len(), columns: dim };
                let left = Left { from: &self.slopes, row: TILE, step: 1 };
                let right = Right { from: &self.keys, stride: dim };
                multiply(self.plan.isa, extent, left, right, (&mut sums[at..], self.width()), Sum::Add);
            }
        }
        scale(&mut self.dk, factor);
    }

    /// The softmax weights of some queries of one query head and their gradients, and what they add to dk and dv.
    fn look(&mut self, part: &Part, queries: &Range<usize>, head: usize) {
        let (isa, Heads { query, dim, .. }) = (self.plan.isa, self.plan.heads);
        let (width, first) = (query * dim, (queries.start * query + head) * dim);
        let (own, outs) = (&self.pass.q[first..], &self.dout[first..]);
        let (rows, keys) = (queries.len(), part.tokens.len());
        let columns = keys.next_multiple_of(LANES);
        let extent = Extent { rows, inner: dim, columns };
        for (from, right, to) in
            [(own, &self.keys_across, &mut self.weights), (outs, &self.values_across, &mut self.slopes)]
        {
            let left = Left { from, row: width, step: 1 };
            multiply(isa, extent, left, Right { from: right, stride: TILE }, (to, TILE), Sum::Set);
        }
        for (row, token) in queries.clone().enumerate() {
            let weights = &mut self.weights[row * TILE..][..columns];
            let slopes = &mut self.slopes[row * TILE..][..columns];
            let at = token * query + head;
            let (lse, offset) = (self.pass.lse[at], self.offsets[at]);
            // Keys behind a query of their own segment are not its past.
            let seen = (token + 1 - part.tokens.start).min(keys);
            // SAFETY: `isa` says what the processor has; both rows are whole vectors of the same number.
            unsafe {
                on_lanes!(isa, differentiate(
                    weights: &mut [f32] = weights, slopes: &mut [f32] = slopes, lse: f32 = lse, offset: f32 = offset
                ));
            }
            self.weights[row * TILE..][seen..columns].fill(0.0);
            self.slopes[row * TILE..][seen..columns].fill(0.0);
        }
        let extent = Extent { rows: keys, inner: rows, columns: dim };
        for (from, right, to) in [(&self.weights, outs, &mut self.dv), (&self.slopes, own, &mut self.dk)] {
            let left = Left { from, row: 1, step: TILE };
            multiply(isa, extent, left, Right { from: right, stride: width }, (to, dim), Sum::Add);
        }
    }
}

/// Turns a query's scores into weights, and the gradients of these into those of the scores.
///
/// # Safety
/// The instruction set of `L` is there.
#[inline(always)]
unsafe fn differentiate<L: Lanes>(weights: &mut [f32], slopes: &mut [f32], lse: f32, offset: f32) {
    for (weights, slopes) in weights.chunks_exact_mut(LANES).zip(slopes.chunks_exact_mut(LANES)) {
        // SAFETY: whole vectors; L as promised.
        unsafe {
            let weight = L::load(weights.as_ptr()).add(L::splat(-lse)).exp();
            let slope = L::load(slopes.as_ptr()).add(L::splat(-offset)).mul(weight);
            weight.store(weights.as_mut_ptr());
            slope.store(slopes.as_mut_ptr());
        }
    }
}
