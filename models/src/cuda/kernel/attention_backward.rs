//! Attention backwards, for whole sequences.

use half::bf16;

use super::attention::{THREADS, check_heads};
use super::launch::Arguments;
use super::{BatchView, Geometry, Kernel, KernelError, Launch, Span};

/// Gradients of queries, keys and values of rows whose whole context is in the batch: their first token has position 0.
/// Probabilities are computed again from the queries, the cache, and the sums [`AttendPrefill`](super::AttendPrefill)
/// left. Three launches: a sum per token and head, then queries, then keys and values; nothing is summed by atomics.
#[derive(Debug, Clone, Copy)]
pub struct AttendBackward {
    /// Its `first`, `context` and `tables`.
    pub batch: BatchView,
    /// As in [`AttendPrefill`](super::AttendPrefill).
    pub tiles: Span<u32>,
    /// Pairs of a row and which of its blocks of sixteen tokens: shape (blocks, 2). A row of [`NONE`](super::NONE) is
    /// padding.
    pub blocks: Span<u32>,
    /// Queries, rotated: shape (tokens, `stride`), heads first.
    pub qkv: Span<bf16>,
    /// Values from one token's queries to the next's: (heads + 2 · kv heads) · dim.
    pub stride: u32,
    /// This layer's blocks with the keys and values of all tokens.
    pub cache: Span<bf16>,
    /// What attention gave, shape (tokens, heads · dim).
    pub out: Span<bf16>,
    /// Its gradient, same shape.
    pub gradient: Span<bf16>,
    /// What [`AttendPrefill`](super::AttendPrefill) left there, shape (tokens, heads).
    pub lse: Span<f32>,
    /// Workspace, shape (tokens, heads).
    pub delta: Span<f32>,
    /// Gradients of queries and keys, still rotated, and of values: shape (tokens, `stride`). Written at the rows' tokens.
    pub qkv_gradient: Span<bf16>,
    /// Tokens of all rows.
    pub tokens: u32,
    /// Tiles in the grid.
    pub tile_count: u32,
    /// Blocks in the grid.
    pub block_count: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; at most 16 query heads share one.
    pub kv_heads: u32,
    /// Width of a head: the one the module was built for.
    pub dim: u32,
}

impl AttendBackward {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::AttendBackwardQueries;
        check_heads(kernel, self.heads, self.kv_heads, self.dim)?;
        let (pairs, width) = ((self.tokens * self.heads) as usize, (self.tokens * self.stride) as usize);
        let stride = (self.heads + 2 * self.kv_heads) * self.dim;
        kernel.demand(self.stride == stride, || format!("a stride of {}, not {stride}", self.stride))?;
        kernel.fits("tiles", &self.tiles, 2 * self.tile_count as usize)?;
        kernel.fits("blocks", &self.blocks, 2 * self.block_count as usize)?;
        kernel.fits("qkv", &self.qkv, width)?;
        kernel.fits("qkv_gradient", &self.qkv_gradient, width)?;
        kernel.fits("out", &self.out, pairs * self.dim as usize)?;
        kernel.fits("gradient", &self.gradient, pairs * self.dim as usize)?;
        kernel.fits("lse", &self.lse, pairs)?;
        kernel.fits("delta", &self.delta, pairs)?;
        let sums = Arguments::new().span(&self.out).span(&self.gradient).span(&self.delta).int(pairs as u32);
        let grid = |x: u32, y: u32| Geometry { blocks: [x, y, 1], threads: THREADS, shared: 0 };
        // SAFETY: the kernels' parameters; sizes were checked, and what indices name is promised by their spans.
        unsafe {
            sums.launch(on, Kernel::AttendDelta, grid((pairs as u32).div_ceil(4), 1))?;
            self.arguments(&self.tiles).launch(on, kernel, grid(self.tile_count, self.kv_heads))?;
            let keys = Kernel::AttendBackwardKeys;
            self.arguments(&self.blocks).launch(on, keys, grid(self.block_count, self.kv_heads))
        }
    }

    fn arguments(&self, work: &Span<u32>) -> Arguments {
        Arguments::new()
            .span(&self.batch.first)
            .span(&self.batch.context)
            .span(&self.batch.tables)
            .int(self.batch.stride)
            .span(work)
            .span(&self.qkv)
            .int(self.stride)
            .span(&self.cache)
            .span(&self.gradient)
            .span(&self.lse)
            .span(&self.delta)
            .span(&self.qkv_gradient)
            .int(self.heads)
    }
}
