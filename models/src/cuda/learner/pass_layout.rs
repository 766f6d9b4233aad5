//! Layout of a pass's activations in device memory.

use half::bf16;

use super::MAX_PASS_TOKENS;
use super::pass_rows::PassRows;
use crate::architecture::QkNorm;
use crate::batch::BLOCK;
use crate::cuda::kernel::{SCORES, layout, prefill_tiles};
use crate::cuda::plan::{Placement, PlacementAllocator};
use crate::decoder::DecoderConfig;
use crate::gradient::Module;

/// Maximum number of targets whose logits exist at once.
pub(super) const TARGETS: usize = 256;

/// Size of a pass, which determines its memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct PassSize {
    pub(super) tokens: usize,
    pub(super) rows: usize,
    /// Number of entries in the block tables of all rows.
    pub(super) tables: usize,
    /// Number of values in the lists of tiles and of blocks.
    pub(super) tiles: usize,
    pub(super) blocks: usize,
    pub(super) targets: usize,
    /// Rank of each module's adapter; 0 for modules without one.
    pub(super) ranks: [usize; Module::COUNT],
    /// If `true`, a backward pass follows.
    pub(super) back: bool,
}

/// Rows in the format of the kernels.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowsLayout {
    pub(super) tokens: Placement<u32>,
    pub(super) positions: Placement<u32>,
    pub(super) rows: Placement<u32>,
    pub(super) first: Placement<u32>,
    pub(super) context: Placement<u32>,
    pub(super) tables: Placement<u32>,
    pub(super) tiles: Placement<u32>,
    pub(super) blocks: Placement<u32>,
    pub(super) wanted: Placement<u32>,
    pub(super) ids: Placement<u32>,
}

/// Buffers of a pass. Matrices have shape (tokens, width); buffers of one layer are reused by the next.
#[derive(Debug, Clone)]
pub(super) struct PassLayout {
    pub(super) layout: RowsLayout,
    /// Residual stream.
    pub(super) stream: Placement<f32>,
    pub(super) normed: Placement<bf16>,
    /// Queries, keys and values.
    pub(super) qkv: Placement<bf16>,
    /// Outputs of the query, key and value projections; empty for models without norms per head.
    pub(super) raw: Placement<bf16>,
    /// One layer's keys and values by block.
    pub(super) cache: Placement<bf16>,
    pub(super) attended: Placement<bf16>,
    pub(super) lse: Placement<f32>,
    pub(super) gate_up: Placement<bf16>,
    pub(super) activated: Placement<bf16>,
    /// Outputs of projections before rounding, or gradients of these outputs, rounded and widened again.
    pub(super) wide: Placement<f32>,
    /// Inputs of projections, widened to `f32` for adapters.
    pub(super) x: Placement<f32>,
    /// `A x` of each module.
    pub(super) small: [Placement<f32>; Module::COUNT],
    /// Logits of at most [`TARGETS`] targets.
    pub(super) logits: Placement<f32>,
    pub(super) scores: Placement<f32>,
    pub(super) back: BackwardLayout,
    /// Total bytes.
    pub(super) bytes: usize,
}

/// Additional buffers of a backward pass; empty without one.
#[derive(Debug, Clone)]
pub(super) struct BackwardLayout {
    /// Input of each layer.
    pub(super) inputs: Vec<Placement<f32>>,
    /// Residual stream between attention and the feed-forward block.
    pub(super) middle: Placement<f32>,
    /// Gradient of the residual stream, in `f32` and rounded.
    pub(super) stream: Placement<f32>,
    pub(super) half: Placement<bf16>,
    pub(super) normed: Placement<bf16>,
    pub(super) qkv: Placement<bf16>,
    pub(super) attended: Placement<bf16>,
    /// Row sums δ = Σ dO ∘ O of attention's backward pass.
    pub(super) delta: Placement<f32>,
    pub(super) gate_up: Placement<bf16>,
    pub(super) activated: Placement<bf16>,
    /// Gradients of projections' inputs before rounding.
    pub(super) x: Placement<f32>,
    /// Gradients of `A x`.
    pub(super) small: Placement<f32>,
    pub(super) logits: Placement<bf16>,
    pub(super) slopes: Placement<f32>,
}

impl PassSize {
    pub(super) fn new(rows: &PassRows, ranks: [usize; Module::COUNT], back: bool) -> Self {
        Self {
            tokens: rows.tokens.len(),
            rows: rows.first.len(),
            tables: rows.tables.len(),
            tiles: rows.tiles.len(),
            blocks: rows.blocks.len(),
            targets: rows.ids.len(),
            ranks,
            back,
        }
    }

    /// Upper bound, in every field, for passes whose rows have `tokens` tokens in total, each row counted in whole
    /// blocks.
    pub(super) fn upper_bound(config: &DecoderConfig, tokens: usize, ranks: [usize; Module::COUNT]) -> Self {
        // Each row has at least one block.
        let blocks = tokens.min(MAX_PASS_TOKENS).div_ceil(BLOCK);
        let tokens = blocks * BLOCK;
        let tiles = prefill_tiles(tokens as u32, config.heads as u32, config.kv_heads as u32) as usize;
        Self {
            tokens,
            rows: blocks,
            // Table entries are rows times the blocks of the longest row. Every other row takes at least one block, so
            // the product is largest where both factors are half of the total.
            tables: (blocks + 1).pow(2) / 4,
            // The last tile of each row may be nearly empty.
            tiles: 2 * (tiles + blocks),
            blocks: 2 * blocks,
            targets: tokens,
            ranks,
            back: true,
        }
    }
}

impl PassLayout {
    pub(super) fn new(config: &DecoderConfig, size: &PassSize) -> Self {
        let tokens = size.tokens;
        let hidden = config.hidden;
        let ffn = config.ffn;
        let q = config.q_width();
        let qkv = q + 2 * config.kv_width();
        let targets = size.targets.min(TARGETS);
        let inner = hidden.max(q).max(ffn);
        let mut allocator = PlacementAllocator::default();
        let layout = RowsLayout::new(&mut allocator, size);
        Self {
            layout,
            stream: allocator.place(tokens * hidden),
            normed: allocator.place(tokens.max(targets) * hidden),
            qkv: allocator.place(tokens * qkv),
            raw: allocator.place(if config.architecture.qk_norm != QkNorm::None { tokens * qkv } else { 0 }),
            cache: allocator.place(size.blocks / 2 * layout::block_len(config.kv_heads, config.head_dim)),
            attended: allocator.place(tokens * q),
            lse: allocator.place(tokens * config.heads),
            gate_up: allocator.place(tokens * 2 * ffn),
            activated: allocator.place(tokens * ffn),
            wide: allocator.place(tokens * qkv.max(2 * ffn)),
            x: allocator.place(tokens * inner),
            small: size.ranks.map(|rank| allocator.place(tokens * rank)),
            logits: allocator.place(targets * config.vocab),
            scores: allocator.place(targets * SCORES),
            back: BackwardLayout::new(&mut allocator, config, if size.back { tokens } else { 0 }, targets, size),
            bytes: allocator.bytes(),
        }
    }
}

impl RowsLayout {
    fn new(allocator: &mut PlacementAllocator, size: &PassSize) -> Self {
        Self {
            tokens: allocator.place(size.tokens),
            positions: allocator.place(size.tokens),
            rows: allocator.place(size.tokens),
            first: allocator.place(size.rows),
            context: allocator.place(size.rows),
            tables: allocator.place(size.tables),
            tiles: allocator.place(size.tiles),
            blocks: allocator.place(size.blocks),
            wanted: allocator.place(size.targets),
            ids: allocator.place(size.targets),
        }
    }
}

impl BackwardLayout {
    fn new(
        allocator: &mut PlacementAllocator,
        config: &DecoderConfig,
        tokens: usize,
        targets: usize,
        size: &PassSize,
    ) -> Self {
        let hidden = config.hidden;
        let ffn = config.ffn;
        let q = config.q_width();
        let qkv = q + 2 * config.kv_width();
        let inner = hidden.max(q).max(ffn);
        let targets = if size.back { targets } else { 0 };
        let rank = size.ranks.into_iter().max().unwrap_or(0);
        Self {
            inputs: (0..config.layers).map(|_| allocator.place(tokens * hidden)).collect(),
            middle: allocator.place(tokens * hidden),
            stream: allocator.place(tokens * hidden),
            half: allocator.place(tokens * hidden),
            normed: allocator.place(tokens.max(targets) * hidden),
            qkv: allocator.place(tokens * qkv),
            attended: allocator.place(tokens * q),
            delta: allocator.place(tokens * config.heads),
            gate_up: allocator.place(tokens * 2 * ffn),
            activated: allocator.place(tokens * ffn),
            x: allocator.place(tokens * inner),
            small: allocator.place(tokens * rank),
            logits: allocator.place(targets * config.vocab),
            slopes: allocator.place(targets * 2),
        }
    }
}
