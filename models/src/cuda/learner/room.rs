//! Where a pass keeps its activations.

use half::bf16;

use super::LARGEST_PASS;
use super::rows::Rows;
use crate::batch::BLOCK;
use crate::cuda::kernel::{SCORES, layout, prefill_tiles};
use crate::cuda::plan::{Carver, Place};
use crate::decoder::DecoderConfig;
use crate::gradient::Module;

/// Targets whose logits exist at once.
pub(super) const TARGETS: usize = 256;

/// What the memory of a pass depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) tokens: usize,
    pub(super) rows: usize,
    /// Entries in the tables of blocks of all rows.
    pub(super) tables: usize,
    /// Values in the lists of tiles and of blocks.
    pub(super) tiles: usize,
    pub(super) blocks: usize,
    pub(super) targets: usize,
    /// The rank of each module's adapter; 0 without one.
    pub(super) ranks: [usize; Module::COUNT],
    /// Whether a backward pass follows.
    pub(super) back: bool,
}

/// The rows as kernels read them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) tokens: Place<u32>,
    pub(super) positions: Place<u32>,
    pub(super) rows: Place<u32>,
    pub(super) first: Place<u32>,
    pub(super) context: Place<u32>,
    pub(super) tables: Place<u32>,
    pub(super) tiles: Place<u32>,
    pub(super) blocks: Place<u32>,
    pub(super) wanted: Place<u32>,
    pub(super) ids: Place<u32>,
}

/// Everything a pass writes. Matrices have shape (tokens, width); those of one layer are used again by the next.
#[derive(Debug, Clone)]
pub(super) struct Room {
    pub(super) layout: Layout,
    /// The residual stream.
    pub(super) stream: Place<f32>,
    pub(super) normed: Place<bf16>,
    /// Queries, keys and values; and where a model has norms per head, the same before anything was done to them.
    pub(super) qkv: Place<bf16>,
    pub(super) raw: Place<bf16>,
    /// One layer's keys and values by block.
    pub(super) cache: Place<bf16>,
    pub(super) attended: Place<bf16>,
    pub(super) lse: Place<f32>,
    pub(super) gate_up: Place<bf16>,
    pub(super) activated: Place<bf16>,
    /// Outputs of projections, or their gradients, before and after rounding.
    pub(super) wide: Place<f32>,
    /// Their inputs, widened for adapters.
    pub(super) x: Place<f32>,
    /// `A x` of each module.
    pub(super) small: [Place<f32>; Module::COUNT],
    /// Of at most [`TARGETS`] targets.
    pub(super) logits: Place<f32>,
    pub(super) scores: Place<f32>,
    pub(super) back: Back,
    /// Bytes of all together.
    pub(super) bytes: usize,
}

/// What a backward pass takes beside it; empty without one.
#[derive(Debug, Clone)]
pub(super) struct Back {
    /// Each layer's input.
    pub(super) inputs: Vec<Place<f32>>,
    /// The stream between attention and the feed-forward part.
    pub(super) middle: Place<f32>,
    /// The gradient of the stream, and the same rounded.
    pub(super) stream: Place<f32>,
    pub(super) half: Place<bf16>,
    pub(super) normed: Place<bf16>,
    pub(super) qkv: Place<bf16>,
    pub(super) attended: Place<bf16>,
    /// What attention backwards sums up first.
    pub(super) delta: Place<f32>,
    pub(super) gate_up: Place<bf16>,
    pub(super) activated: Place<bf16>,
    /// Gradients of projections' inputs before rounding.
    pub(super) x: Place<f32>,
    /// Gradients inside adapters.
    pub(super) small: Place<f32>,
    pub(super) logits: Place<bf16>,
    pub(super) slopes: Place<f32>,
}

impl Size {
    pub(super) fn new(rows: &Rows, ranks: [usize; Module::COUNT], back: bool) -> Self {
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

    /// No less in anything than any pass whose rows make `tokens` tokens, each row counted in whole blocks.
    pub(super) fn most(config: &DecoderConfig, tokens: usize, ranks: [usize; Module::COUNT]) -> Self {
        // A row has a block of its own at least.
        let blocks = tokens.min(LARGEST_PASS).div_ceil(BLOCK);
        let tokens = blocks * BLOCK;
        let tiles = prefill_tiles(tokens as u32, config.heads as u32, config.kv_heads as u32) as usize;
        Self {
            tokens,
            rows: blocks,
            // Rows times the blocks of the longest, which leaves one block at least to each of the others: the product is
            // largest where both are half of what there is.
            tables: (blocks + 1).pow(2) / 4,
            // Each row may leave its last tile nearly empty.
            tiles: 2 * (tiles + blocks),
            blocks: 2 * blocks,
            targets: tokens,
            ranks,
            back: true,
        }
    }
}

impl Room {
    pub(super) fn new(config: &DecoderConfig, size: &Size) -> Self {
        let (tokens, hidden, ffn, q) = (size.tokens, config.hidden, config.ffn, config.q_width());
        let qkv = q + 2 * config.kv_width();
        let targets = size.targets.min(TARGETS);
        let inner = hidden.max(q).max(ffn);
        let mut carver = Carver::default();
        let layout = Layout::new(&mut carver, size);
        Self {
            layout,
            stream: carver.place(tokens * hidden),
            normed: carver.place(tokens.max(targets) * hidden),
            qkv: carver.place(tokens * qkv),
            raw: carver.place(if config.qk_norm { tokens * qkv } else { 0 }),
            cache: carver.place(size.blocks / 2 * layout::block_len(config.kv_heads, config.head_dim)),
            attended: carver.place(tokens * q),
            lse: carver.place(tokens * config.heads),
            gate_up: carver.place(tokens * 2 * ffn),
            activated: carver.place(tokens * ffn),
            wide: carver.place(tokens * qkv.max(2 * ffn)),
            x: carver.place(tokens * inner),
            small: size.ranks.map(|rank| carver.place(tokens * rank)),
            logits: carver.place(targets * config.vocab),
            scores: carver.place(targets * SCORES),
            back: Back::new(&mut carver, config, if size.back { tokens } else { 0 }, targets, size),
            bytes: carver.bytes(),
        }
    }
}

impl Layout {
    fn new(carver: &mut Carver, size: &Size) -> Self {
        Self {
            tokens: carver.place(size.tokens),
            positions: carver.place(size.tokens),
            rows: carver.place(size.tokens),
            first: carver.place(size.rows),
            context: carver.place(size.rows),
            tables: carver.place(size.tables),
            tiles: carver.place(size.tiles),
            blocks: carver.place(size.blocks),
            wanted: carver.place(size.targets),
            ids: carver.place(size.targets),
        }
    }
}

impl Back {
    fn new(carver: &mut Carver, config: &DecoderConfig, tokens: usize, targets: usize, size: &Size) -> Self {
        let (hidden, ffn, q) = (config.hidden, config.ffn, config.q_width());
        let (qkv, inner) = (q + 2 * config.kv_width(), hidden.max(q).max(ffn));
        let targets = if size.back { targets } else { 0 };
        let rank = size.ranks.into_iter().max().unwrap_or(0);
        Self {
            inputs: (0..config.layers).map(|_| carver.place(tokens * hidden)).collect(),
            middle: carver.place(tokens * hidden),
            stream: carver.place(tokens * hidden),
            half: carver.place(tokens * hidden),
            normed: carver.place(tokens.max(targets) * hidden),
            qkv: carver.place(tokens * qkv),
            attended: carver.place(tokens * q),
            delta: carver.place(tokens * config.heads),
            gate_up: carver.place(tokens * 2 * ffn),
            activated: carver.place(tokens * ffn),
            x: carver.place(tokens * inner),
            small: carver.place(tokens * rank),
            logits: carver.place(targets * config.vocab),
            slopes: carver.place(targets * 2),
        }
    }
}
