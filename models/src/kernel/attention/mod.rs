//! Causal attention over a paged cache, read in place through the block tables.
//!
//! Work is split into tiles: a tile is one key and value head with the query positions that share a pass over its
//! blocks. These are consecutive positions of one sequence, or positions of several sequences that begin with the same
//! blocks. The query heads of a group belong to the same tile, so the cache is read once per group.

mod plan;
pub(crate) mod stored;
mod tile;

use std::ops::Range;

use crate::batch::{BLOCK, ForwardBatch};
use crate::kernel::isa::Isa;
use crate::kernel::team::{Base, Team};
use plan::{AttentionItem, QuerySpan, TILE_ROWS, TilePlan};
use stored::Stored;
use tile::{AttentionTile, Blocks, RUN_TOKENS};

/// Head counts and width of a decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLayout {
    /// Number of query heads, a multiple of `kv`.
    pub query: usize,
    /// Number of key and value heads.
    pub kv: usize,
    /// Width of a head, a multiple of 16.
    pub dim: usize,
}

impl HeadLayout {
    /// Number of query heads per key and value head.
    pub fn group(self) -> usize {
        self.query / self.kv
    }

    /// Number of elements in one layer's share of a block. Each head stores its keys, shape (dim, [`BLOCK`]),
    /// transposed so that the scores of a whole block form one vector, followed by its values, shape ([`BLOCK`],
    /// dim), and their scales if the type has any.
    pub(crate) fn block_len<S: Stored>(self) -> usize {
        self.kv * self.head_len::<S>()
    }

    /// Number of elements of one head in a block.
    pub(crate) fn head_len<S: Stored>(self) -> usize {
        2 * BLOCK * self.dim + S::SCALES
    }
}

/// Attention plan of one step and its working memory, reused from layer to layer and from step to step.
#[derive(Debug)]
pub struct Attention {
    heads: HeadLayout,
    isa: Isa,
    plan: TilePlan,
    /// Scratch per worker: queries, sums, scores, largest scores, totals.
    scratch: Vec<Vec<f32>>,
}

/// Scale, window and limit of the scores in one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreRule {
    /// Factor on the product of query and key.
    pub scale: f32,
    /// Number of positions that a token sees, counting itself. `None` means all earlier ones.
    pub window: Option<usize>,
    /// Soft limit `c`: scores become `c · tanh(score / c)`. `None` leaves them unlimited.
    pub cap: Option<f32>,
}

impl ScoreRule {
    /// Rule of plain causal attention with heads of width `dim`.
    pub fn plain(dim: usize) -> Self {
        Self { scale: 1.0 / (dim as f32).sqrt(), window: None, cap: None }
    }
}

/// Queries of a step: the heads of token `t` begin at `data[t * stride]`.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// Rotated but unscaled queries.
    pub data: &'a [f32],
    /// Distance between tokens, in values.
    pub stride: usize,
}

impl Attention {
    /// Creates the attention for one shape of heads on a team of `threads` threads.
    pub fn new(heads: HeadLayout, threads: usize) -> Self {
        let rows = TILE_ROWS.max(heads.group());
        let len = rows * (2 * heads.dim + RUN_TOKENS + 2);
        Self { heads, isa: Isa::best(), plan: TilePlan::default(), scratch: vec![vec![0.0; len]; threads] }
    }

    /// Splits a step into tiles. The plan serves all layers.
    pub fn plan(&mut self, batch: &ForwardBatch) {
        self.plan.plan(batch, self.heads, self.scratch.len());
    }

    /// Computes `softmax(scale · q · kᵀ) · v` for every token and head of the planned batch, with the window and the
    /// limit of `rule`.
    ///
    /// `layer` is the layer's part of the cache, which already holds the batch's own keys and values; `out` has
    /// shape (tokens, query heads · dim).
    ///
    /// # Panics
    /// If a slice is too short for the batch, or a block table names a block outside `layer`.
    pub(crate) fn run<S: Stored>(
        &mut self,
        team: &Team,
        batch: &ForwardBatch,
        layer: &[S],
        queries: Queries<'_>,
        rule: ScoreRule,
        out: &mut [f32],
    ) {
        let width = self.heads.query * self.heads.dim;
        assert_eq!(batch.tokens().len(), self.plan.tokens, "a batch that was not planned");
        assert!(out.len() >= self.plan.tokens * width, "attention output too short");
        let out = Base(out.as_mut_ptr());
        let scratch = Base(self.scratch.as_mut_ptr());
        assert!(team.threads() <= self.scratch.len(), "planned for fewer threads");
        let isa = self.isa;
        let step = AttentionStep { heads: self.heads, plan: &self.plan, batch, layer, queries, rule };
        let items = self.plan.items();
        team.sweep(items.len(), &|claims| {
            // SAFETY: each worker has its own index, below the number of scratch buffers.
            let scratch = unsafe { &mut *scratch.at(claims.worker()) };
            let mut claims = claims.map(|index| &items[index]).peekable();
            while let Some(item) = claims.next() {
                let after = claims.peek().copied().unwrap_or(item);
                let sums = step.attend(isa, item, after, scratch);
                let places = step.places(item, width);
                for (from, to) in sums.chunks_exact(step.heads.dim).zip(places) {
                    // SAFETY: inside `out` by the assertion above; items have disjoint tokens and heads.
                    unsafe { std::slice::from_raw_parts_mut(out.at(to.start), from.len()) }.copy_from_slice(from);
                }
            }
        });
    }
}

/// Attention of one layer in one step, as all threads see it.
struct AttentionStep<'a, S> {
    heads: HeadLayout,
    plan: &'a TilePlan,
    batch: &'a ForwardBatch,
    /// Layer's part of the cache.
    layer: &'a [S],
    queries: Queries<'a>,
    rule: ScoreRule,
}

impl<'a, S: Stored> AttentionStep<'a, S> {
    /// Computes an item and returns its output, shape (rows of the tile, dim). Meanwhile prefetches the blocks that
    /// `after` reads first.
    fn attend<'s>(&self, isa: Isa, item: &AttentionItem, after: &AttentionItem, scratch: &'s mut [f32]) -> &'s [f32] {
        let mut tile = self.tile(item, scratch);
        let members = self.plan.members(item);
        let own = |member: &QuerySpan| self.own_blocks(item, member);
        let shared = self.shared(item);
        if shared > 0 {
            tile.attend(isa, self.blocks(item.head, &members[0], 0..shared), own(&members[0]));
        }
        let mut rows = 0;
        for (index, member) in members.iter().enumerate() {
            let next = members.get(index + 1).map_or_else(|| self.first_blocks(after), own);
            let end = rows + member.queries * self.heads.group();
            tile.part(rows..end, member.position).attend(isa, own(member), next);
            rows = end;
        }
        tile.finish()
    }

    /// Number of first positions that the members of an item attend together.
    fn shared(&self, item: &AttentionItem) -> usize {
        // With a window, members see different parts of the shared positions.
        if self.rule.window.is_some() { 0 } else { item.shared }
    }

    /// Keys and values that an item reads first.
    fn first_blocks(&self, item: &AttentionItem) -> Blocks<'a, S> {
        let leader = &self.plan.members(item)[0];
        match self.shared(item) {
            0 => self.own_blocks(item, leader),
            shared => self.blocks(item.head, leader, 0..shared),
        }
    }

    /// Keys and values that a member sees and does not share.
    fn own_blocks(&self, item: &AttentionItem, member: &QuerySpan) -> Blocks<'a, S> {
        let first = self.rule.window.map_or(0, |window| (member.position + 1).saturating_sub(window));
        // Runs begin at the same positions for every window and split into chunks, so sums do not depend on the
        // chunks.
        let start = self.shared(item).max(first / RUN_TOKENS * RUN_TOKENS);
        self.blocks(item.head, member, start..member.position + member.queries)
    }

    fn blocks(&self, head: usize, member: &QuerySpan, positions: Range<usize>) -> Blocks<'a, S> {
        Blocks {
            data: self.layer,
            table: self.batch.table(&self.batch.rows()[member.row]),
            stride: self.heads.block_len::<S>(),
            offset: head * self.heads.head_len::<S>(),
            len: self.heads.head_len::<S>(),
            start: positions.start,
            end: positions.end,
        }
    }

    /// Ranges of an item's query rows in a matrix with `stride` values per token.
    fn places(&self, item: &AttentionItem, stride: usize) -> impl Iterator<Item = Range<usize>> + use<'a, S> {
        let HeadLayout { dim, .. } = self.heads;
        let group = self.heads.group();
        let first = item.head * group;
        let tokens = self.plan.members(item).iter().flat_map(|member| member.token..member.token + member.queries);
        tokens.flat_map(move |token| {
            (first..first + group).map(move |head| {
                let start = token * stride + head * dim;
                start..start + dim
            })
        })
    }

    /// Lays out the scratch and copies the scaled queries into it.
    fn tile<'s>(&self, item: &AttentionItem, scratch: &'s mut [f32]) -> AttentionTile<'s> {
        let HeadLayout { dim, .. } = self.heads;
        let members = self.plan.members(item);
        let rows = members.iter().map(|member| member.queries).sum::<usize>() * self.heads.group();
        let (own, scratch) = scratch.split_at_mut(rows * dim);
        let (sums, scratch) = scratch.split_at_mut(rows * dim);
        let (scores, scratch) = scratch.split_at_mut(rows * RUN_TOKENS);
        let (largest, scratch) = scratch.split_at_mut(rows);
        let totals = &mut scratch[..rows];
        for (row, place) in own.chunks_exact_mut(dim).zip(self.places(item, self.queries.stride)) {
            let from = &self.queries.data[place];
            row.iter_mut().zip(from).for_each(|(to, from)| *to = from * self.rule.scale);
        }
        sums.fill(0.0);
        totals.fill(0.0);
        largest.fill(f32::NEG_INFINITY);
        AttentionTile {
            queries: own,
            group: self.heads.group(),
            // Every member sees all positions that it shares.
            position: members[0].position,
            window: self.rule.window,
            cap: self.rule.cap,
            head_dim: dim,
            scores,
            sums,
            largest,
            totals,
        }
    }
}

#[cfg(test)]
mod test;
