//! Forward pass of attention: tiles of queries against all visible keys, with an online softmax (Milakov and
//! Gimelshein 2018).
//!
//! Scores are stored transposed, shape (keys, queries): each query is a vector lane, so maxima and sums need no
//! reduction across lanes.

use std::ops::Range;

use super::forest::tiles;
use super::{AttentionPlan, SegmentPart, TILE, on_lanes};
use crate::kernel::attention::{HeadLayout, ScoreRule};
use crate::kernel::block::{Extent, Left, Right, Sum, multiply};
use crate::kernel::isa::Isa;
use crate::kernel::lanes::{LANES, Lanes};
use crate::kernel::soft_cap;
use crate::kernel::team::{Base, Team};
use crate::kernel::worker_memory::FreeMemory;

/// Score of keys before a query's window. It is finite, unlike the score of keys after the query, because a tile may
/// hold no other keys. The sums over such a tile vanish when the first visible key rescales them.
const HIDDEN: f32 = -1e30;

pub(super) fn run(
    plan: &AttentionPlan,
    team: &Team,
    rule: ScoreRule,
    qkv: (&[f32], &[f32], &[f32]),
    out: &mut [f32],
    lse: &mut [f32],
) {
    let heads = plan.heads;
    let width = plan.heads.query * plan.heads.dim;
    let out = Base(out.as_mut_ptr());
    let lse = Base(lse.as_mut_ptr());
    team.sweep(plan.queries.len() * heads.kv, &|claims| {
        let mut memory = team.floats(claims.worker(), QueryTile::memory_len(heads));
        let mut tile = QueryTile::new(plan, &mut memory.free());
        for item in claims {
            let part = &plan.queries[item / heads.kv];
            let head = item % heads.kv;
            tile.attend(part, head, rule, qkv);
            for (query, token) in part.tokens.clone().enumerate() {
                for (member, state) in tile.members.iter().enumerate() {
                    let index = head * heads.group() + member;
                    let values = &state.sums[query * heads.dim..][..heads.dim];
                    // SAFETY: inside the slices, whose shapes `AttentionPlan::forward` has checked; items have
                    // disjoint tokens and heads.
                    let (out, lse) = unsafe {
                        let out = out.at(token * width + index * heads.dim);
                        (std::slice::from_raw_parts_mut(out, heads.dim), &mut *lse.at(token * heads.query + index))
                    };
                    let total = state.totals[query];
                    out.iter_mut().zip(values).for_each(|(out, value)| *out = value / total);
                    *lse = state.largest[query] + total.ln();
                }
            }
        }
    });
}

/// Up to `TILE` queries of every head in a group, with the buffers for their keys.
struct QueryTile<'a> {
    plan: &'a AttentionPlan,
    members: Vec<Member<'a>>,
    /// Scores, shape (keys, `TILE`).
    scores: &'a mut [f32],
    /// Values of one tile of keys, shape (keys, dim).
    values: &'a mut [f32],
}

/// State of one query head.
struct Member<'a> {
    /// Scaled and transposed queries, shape (dim, `TILE`), zero beyond the last.
    queries: &'a mut [f32],
    /// Weighted sums of values, shape (`TILE`, dim).
    sums: &'a mut [f32],
    largest: &'a mut [f32],
    totals: &'a mut [f32],
}

impl<'a> QueryTile<'a> {
    /// Number of values in the buffers of a tile.
    fn memory_len(heads: HeadLayout) -> usize {
        TILE * (heads.group() * (2 * heads.dim + 2) + TILE + heads.dim)
    }

    fn new(plan: &'a AttentionPlan, free: &mut FreeMemory<'a>) -> Self {
        let vectors = TILE * plan.heads.dim;
        let member = || Member {
            queries: free.floats(vectors),
            sums: free.floats(vectors),
            largest: free.floats(TILE),
            totals: free.floats(TILE),
        };
        let members = std::iter::repeat_with(member).take(plan.heads.group()).collect();
        Self { plan, members, scores: free.floats(TILE * TILE), values: free.floats(vectors) }
    }

    fn attend(&mut self, part: &SegmentPart, head: usize, rule: ScoreRule, (q, k, v): (&[f32], &[f32], &[f32])) {
        let HeadLayout { query, kv, dim } = self.plan.heads;
        for (member, state) in self.members.iter_mut().enumerate() {
            let at = part.tokens.start * query * dim + (head * query / kv + member) * dim;
            state.begin(part.tokens.len(), dim, rule.scale, &q[at..], query * dim);
        }
        for keys in tiles(&self.plan.forest.keys(part)) {
            let at = keys.start * kv * dim + head * dim;
            for (row, values) in self.values.chunks_exact_mut(dim).take(keys.len()).enumerate() {
                values.copy_from_slice(&v[at + row * kv * dim..][..dim]);
            }
            let left = Left { from: &k[at..], row: kv * dim, step: 1 };
            // Number of queries that see each key, from the first one on, if there is a window.
            let ends = rule.window.map(|window| {
                let first = self.plan.positions[part.tokens.start];
                keys.clone().map(|key| (self.plan.positions[key] + window).saturating_sub(first)).collect::<Vec<_>>()
            });
            let tile = VisibleKeys { left, tokens: &keys, ends: ends.as_deref(), cap: rule.cap, values: self.values };
            for state in &mut self.members {
                state.visit_keys(self.plan.isa, &tile, &part.tokens, self.scores);
            }
        }
    }
}

/// Keys and values of one head, up to `TILE` of them.
struct VisibleKeys<'a> {
    left: Left<'a>,
    tokens: &'a Range<usize>,
    /// Number of queries of the tile that see each key, counted from the first query. `None` without a window.
    ends: Option<&'a [usize]>,
    /// Soft limit of the scores.
    cap: Option<f32>,
    /// Values, shape (keys, dim).
    values: &'a [f32],
}

impl Member<'_> {
    fn begin(&mut self, count: usize, dim: usize, scale: f32, q: &[f32], stride: usize) {
        if count < TILE {
            self.queries.fill(0.0);
        }
        for query in 0..count {
            let from = &q[query * stride..][..dim];
            from.iter().enumerate().for_each(|(d, value)| self.queries[d * TILE + query] = value * scale);
        }
        self.sums.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        self.totals.fill(0.0);
    }

    /// Processes one tile of keys and values.
    fn visit_keys(&mut self, isa: Isa, keys: &VisibleKeys<'_>, queries: &Range<usize>, scores: &mut [f32]) {
        let seen = keys.tokens;
        let dim = self.sums.len() / TILE;
        let columns = queries.len().next_multiple_of(LANES);
        let extent = Extent { rows: seen.len(), inner: dim, columns };
        multiply(isa, extent, keys.left, Right { from: self.queries, stride: TILE }, (scores, TILE), Sum::Set);
        if let Some(cap) = keys.cap {
            soft_cap(&mut scores[..seen.len() * TILE], cap);
        }
        for (row, token) in seen.clone().enumerate() {
            // Causal mask: queries before a key do not see it.
            scores[row * TILE..][..token.saturating_sub(queries.start)].fill(f32::NEG_INFINITY);
        }
        for (row, &end) in keys.ends.unwrap_or_default().iter().enumerate() {
            scores[row * TILE..(row + 1) * TILE][end.min(TILE)..].fill(HIDDEN);
        }
        // SAFETY: `isa` names instructions that the CPU has; the scores have a row per key.
        unsafe {
            let rows = &mut scores[..seen.len() * TILE];
            on_lanes!(isa, softmax_weights(scores: &mut [f32] = rows, columns: usize = columns, member: &mut Member<'_> = self));
        }
        let extent = Extent { rows: queries.len(), inner: seen.len(), columns: dim };
        let left = Left { from: scores, row: 1, step: TILE };
        multiply(isa, extent, left, Right { from: keys.values, stride: dim }, (self.sums, dim), Sum::Add);
    }
}

/// Converts scores, shape (keys, `TILE`), into softmax weights relative to the largest score so far, and rescales
/// the earlier sums.
///
/// # Safety
/// The CPU must support the instruction set of `L`.
#[inline(always)]
unsafe fn softmax_weights<L: Lanes>(scores: &mut [f32], columns: usize, member: &mut Member<'_>) {
    let mut keep = [0.0; TILE];
    for column in (0..columns).step_by(LANES) {
        // SAFETY: whole vectors of the rows and of the arrays, which have TILE values; the instruction set of `L`
        // is available.
        unsafe {
            let before = L::load(member.largest[column..].as_ptr());
            let mut largest = [before; 4];
            for rows in scores.chunks(4 * TILE) {
                for (row, largest) in rows.chunks_exact(TILE).zip(&mut largest) {
                    *largest = largest.max(L::load(row[column..].as_ptr()));
                }
            }
            let largest = largest[0].max(largest[1]).max(largest[2].max(largest[3]));
            let negative = largest.mul(L::splat(-1.0));
            let mut total = L::splat(0.0);
            for row in scores.chunks_exact_mut(TILE) {
                let at = row[column..].as_mut_ptr();
                let weight = L::load(at).add(negative).exp();
                weight.store(at);
                total = total.add(weight);
            }
            let factor = before.add(negative).exp();
            let totals = member.totals[column..].as_mut_ptr();
            L::load(totals).fma(factor, total).store(totals);
            largest.store(member.largest[column..].as_mut_ptr());
            factor.store(keep[column..].as_mut_ptr());
        }
    }
    let dim = member.sums.len() / TILE;
    for (sums, keep) in member.sums.chunks_exact_mut(dim).zip(keep).take(columns) {
        for vector in sums.chunks_exact_mut(LANES) {
            // SAFETY: a whole vector, and the instruction set of `L` is available.
            unsafe { L::load(vector.as_ptr()).mul(L::splat(keep)).store(vector.as_mut_ptr()) };
        }
    }
}
