//! Causal attention over a paged cache, read in place through the block tables.
//!
//! Work is split into tiles: one sequence, one key and value head, and as many consecutive query positions as share
//! a pass over its blocks. The query heads of a group belong to the same tile, so the cache is read once per group.

pub(crate) mod stored;
mod tile;

use std::ops::Range;

use crate::batch::{BLOCK, ForwardBatch};
use crate::kernel::isa::Isa;
use crate::kernel::team::{Base, Team};
use stored::Stored;
use tile::{AttentionTile, Blocks, RUN_TOKENS};

/// Number of query rows (positions times heads of a group) in a tile: enough to amortize reading keys and values
/// from the second-level cache, few enough to keep their scores in that cache.
const TILE_ROWS: usize = 48;

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

/// Consecutive query positions of one sequence for one key and value head.
#[derive(Debug, Clone, Copy)]
struct Item {
    row: usize,
    head: usize,
    /// Index of the first query token in the batch.
    token: usize,
    queries: usize,
    /// Position of the first query in its sequence.
    position: usize,
}

/// Attention plan of one step and its working memory, reused from layer to layer and from step to step.
#[derive(Debug)]
pub struct Attention {
    heads: HeadLayout,
    isa: Isa,
    items: Vec<Item>,
    /// Number of tokens of the planned batch.
    tokens: usize,
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
        Self { heads, isa: Isa::best(), items: Vec::new(), tokens: 0, scratch: vec![vec![0.0; len]; threads] }
    }

    /// Splits a step into tiles. The plan serves all layers.
    pub fn plan(&mut self, batch: &ForwardBatch) {
        self.items.clear();
        self.tokens = batch.tokens().len();
        let most = (TILE_ROWS / self.heads.group()).max(1);
        for (row, share) in batch.rows().iter().enumerate() {
            let mut done = 0;
            while done < share.tokens.len() {
                let queries = (share.tokens.len() - done).min(most);
                let token = share.tokens.start + done;
                let position = share.start + done;
                self.items.extend((0..self.heads.kv).map(|head| Item { row, head, token, queries, position }));
                done += queries;
            }
        }
        // The longest tiles come first, so that the last ones are short and all threads finish together. Among
        // equals, heads of a row stay together because their keys and values are adjacent.
        let work = |item: &Item| std::cmp::Reverse(item.queries * (item.position + item.queries));
        self.items.sort_unstable_by_key(|item| (work(item), item.token, item.head));
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
        assert_eq!(batch.tokens().len(), self.tokens, "a batch that was not planned");
        assert!(out.len() >= self.tokens * width, "attention output too short");
        let out = Base(out.as_mut_ptr());
        let scratch = Base(self.scratch.as_mut_ptr());
        assert!(team.threads() <= self.scratch.len(), "planned for fewer threads");
        let heads = self.heads;
        let isa = self.isa;
        let items = &self.items;
        team.sweep(items.len(), &|claims| {
            // SAFETY: each worker has its own index, below the number of scratch buffers.
            let scratch = unsafe { &mut *scratch.at(claims.worker()) };
            let mut claims = claims.map(|index| items[index]).peekable();
            while let Some(item) = claims.next() {
                let after = claims.peek().copied().unwrap_or(item);
                let mut tile = item.tile(heads, scratch, queries, rule);
                let blocks = |item: Item| item.blocks(heads, batch, layer, rule.window);
                tile.attend(isa, blocks(item), blocks(after));
                for (index, sums) in tile.sums.chunks_exact(heads.dim).enumerate() {
                    let to = item.place(heads, index, width);
                    // SAFETY: inside `out` by the assertion above; items have disjoint tokens and heads.
                    unsafe { std::slice::from_raw_parts_mut(out.at(to.start), heads.dim) }.copy_from_slice(sums);
                }
            }
        });
    }
}

impl Item {
    /// Keys and values visible to the tile's queries.
    fn blocks<'a, S: Stored>(
        self,
        heads: HeadLayout,
        batch: &'a ForwardBatch,
        data: &'a [S],
        window: Option<usize>,
    ) -> Blocks<'a, S> {
        let first = window.map_or(0, |window| (self.position + 1).saturating_sub(window));
        Blocks {
            data,
            table: batch.table(&batch.rows()[self.row]),
            stride: heads.block_len::<S>(),
            offset: self.head * heads.head_len::<S>(),
            len: heads.head_len::<S>(),
            // Runs begin at the same positions for every window and split into chunks, so that sums do not depend on it.
            start: first / RUN_TOKENS * RUN_TOKENS,
            end: self.position + self.queries,
        }
    }

    /// Range of query row `index` of this tile in a matrix with `stride` values per token.
    fn place(self, heads: HeadLayout, index: usize, stride: usize) -> Range<usize> {
        let query = index / heads.group();
        let member = index % heads.group();
        let start = (self.token + query) * stride + (self.head * heads.group() + member) * heads.dim;
        start..start + heads.dim
    }

    /// Resizes the scratch and copies the scaled queries into it.
    fn tile<'a>(
        self,
        heads: HeadLayout,
        scratch: &'a mut [f32],
        queries: Queries<'_>,
        rule: ScoreRule,
    ) -> AttentionTile<'a> {
        let rows = self.queries * heads.group();
        let (own, scratch) = scratch.split_at_mut(rows * heads.dim);
        let (sums, scratch) = scratch.split_at_mut(rows * heads.dim);
        let (scores, scratch) = scratch.split_at_mut(rows * RUN_TOKENS);
        let (largest, scratch) = scratch.split_at_mut(rows);
        for (index, row) in own.chunks_exact_mut(heads.dim).enumerate() {
            let from = &queries.data[self.place(heads, index, queries.stride)];
            row.iter_mut().zip(from).for_each(|(to, from)| *to = from * rule.scale);
        }
        AttentionTile {
            queries: own,
            group: heads.group(),
            position: self.position,
            window: rule.window,
            cap: rule.cap,
            head_dim: heads.dim,
            scores,
            sums,
            largest,
            totals: &mut scratch[..rows],
        }
    }
}

#[cfg(test)]
mod test;
