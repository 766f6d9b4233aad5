//! Causal attention over the paged cache, for rows of one new token and for chunks of many.

use half::bf16;

use super::launch::Arguments;
use super::{BatchView, Geometry, Kernel, KernelError, Launch, Span, layout};

/// Threads in a block.
pub(super) const THREADS: u32 = 128;

/// Packed query rows (positions times heads of a group) in one tile of a chunk: sixteen for each of four warps.
const TILE: u32 = 64;

/// Attention of rows that bring one token each: the rows `0..rows` of the batch. The context is split among the warps of
/// a block and among `splits` blocks, of which the last one to finish puts the parts together, in their order.
///
/// A row of context 0 gets zeros at the token its `first` names, unless that is [`NONE`](super::NONE).
#[derive(Debug, Clone, Copy)]
pub struct AttendDecode {
    /// Its `first`, `context` and `tables`.
    pub batch: BatchView,
    /// Queries as [`Rotary`](super::Rotary) leaves them: shape (tokens, `stride`), heads first.
    pub qkv: Span<bf16>,
    /// Values from one token's queries to the next's.
    pub stride: u32,
    /// This layer's blocks, the new keys and values among them.
    pub cache: Span<bf16>,
    /// Partial results: [`Self::workspace`] values.
    pub workspace: Span<f32>,
    /// One per row and key and value head; zero before the first launch ever, and again after each.
    pub arrived: Span<u32>,
    /// Shape (tokens, heads · dim). Written at each row's token.
    pub out: Span<bf16>,
    /// Rows in the grid.
    pub rows: u32,
    /// The most parts a context is split into, 1 to 64; a row takes as many as its context is worth. Does not depend on
    /// the lengths: choose it by `rows` and the card's size ([`Self::splits_for`]).
    pub splits: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; at most 16 query heads share one.
    pub kv_heads: u32,
    /// Width of a head: the one the module was built for.
    pub dim: u32,
}

impl AttendDecode {
    /// Values of workspace a launch of these sizes needs.
    pub fn workspace(rows: u32, splits: u32, heads: u32, dim: u32) -> usize {
        rows as usize * heads as usize * splits as usize * (dim as usize + 2)
    }

    /// A number of parts that gives each of a card's `processors` a few blocks, and no more parts than the longest
    /// context is worth.
    pub fn splits_for(rows: u32, kv_heads: u32, processors: u32, longest: u32) -> u32 {
        let wanted = (4 * processors).div_ceil((rows * kv_heads).max(1));
        wanted.clamp(1, 64).min(longest.div_ceil(128).max(1))
    }

    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::AttendDecode;
        check_heads(kernel, self.heads, self.kv_heads, self.dim)?;
        kernel.demand((1..=64).contains(&self.splits), || format!("{} splits, not 1 to 64", self.splits))?;
        let rows = self.rows as usize;
        kernel.fits("first", &self.batch.first, rows)?;
        kernel.fits("context", &self.batch.context, rows)?;
        kernel.fits("tables", &self.batch.tables, rows * self.batch.stride as usize)?;
        kernel.fits("workspace", &self.workspace, Self::workspace(self.rows, self.splits, self.heads, self.dim))?;
        kernel.fits("arrived", &self.arrived, rows * self.kv_heads as usize)?;
        let arguments = Arguments::new()
            .span(&self.batch.first)
            .span(&self.batch.context)
            .span(&self.batch.tables)
            .int(self.batch.stride)
            .span(&self.qkv)
            .int(self.stride)
            .span(&self.cache)
            .span(&self.workspace)
            .span(&self.arrived)
            .span(&self.out)
            .int(self.heads);
        let geometry = Geometry { blocks: [self.splits, self.kv_heads, self.rows], threads: THREADS, shared: 0 };
        // SAFETY: the parameters of `attend_decode`; sizes were checked, and what indices name is promised by their spans.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}

/// Attention of chunks: any rows, each with any number of new tokens, cut into tiles ([`prefill_tiles`]).
#[derive(Debug, Clone, Copy)]
pub struct AttendPrefill {
    /// Its `positions`, `first`, `context` and `tables`.
    pub batch: BatchView,
    /// Pairs of a row and which of its tiles: shape (tiles, 2). A row of [`NONE`](super::NONE) is padding.
    pub tiles: Span<u32>,
    /// Queries as [`Rotary`](super::Rotary) leaves them: shape (tokens, `stride`), heads first.
    pub qkv: Span<bf16>,
    /// Values from one token's queries to the next's.
    pub stride: u32,
    /// This layer's blocks, the new keys and values among them.
    pub cache: Span<bf16>,
    /// Shape (tokens, heads · dim). Written at the rows' tokens.
    pub out: Span<bf16>,
    /// For learning: per token and head, the base-2 logarithm of the sum of `exp(q · k / √dim)` over what it sees, shape
    /// (tokens, heads). Written at the rows' tokens.
    pub lse: Option<Span<f32>>,
    /// Tiles in the grid.
    pub count: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; at most 16 query heads share one.
    pub kv_heads: u32,
    /// Width of a head: the one the module was built for.
    pub dim: u32,
}

/// Tiles of a row that brings `tokens` new ones. The longest work is the last tile of the longest context: list tiles in
/// falling order of it.
pub fn prefill_tiles(tokens: u32, heads: u32, kv_heads: u32) -> u32 {
    (tokens * (heads / kv_heads)).div_ceil(TILE)
}

impl AttendPrefill {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::AttendPrefill;
        check_heads(kernel, self.heads, self.kv_heads, self.dim)?;
        kernel.fits("tiles", &self.tiles, 2 * self.count as usize)?;
        let arguments = Arguments::new()
            .span(&self.batch.positions)
            .span(&self.batch.first)
            .span(&self.batch.context)
            .span(&self.batch.tables)
            .int(self.batch.stride)
            .span(&self.tiles)
            .span(&self.qkv)
            .int(self.stride)
            .span(&self.cache)
            .span(&self.out)
            .maybe(self.lse.as_ref())
            .int(self.heads);
        let geometry = Geometry { blocks: [self.count, self.kv_heads, 1], threads: THREADS, shared: 0 };
        // SAFETY: the parameters of `attend_prefill`; sizes were checked, and what indices name is promised by their spans.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}

pub(super) fn check_heads(kernel: Kernel, heads: u32, kv_heads: u32, dim: u32) -> Result<(), KernelError> {
    let known = layout::HEAD_DIMS.contains(&(dim as usize));
    kernel.demand(known, || format!("no kernel for heads of width {dim}"))?;
    let grouped = kv_heads > 0 && heads.is_multiple_of(kv_heads) && heads / kv_heads <= layout::LARGEST_GROUP as u32;
    kernel.demand(grouped, || format!("{heads} query heads over {kv_heads}: groups of 1 to 16 are wanted"))
}
