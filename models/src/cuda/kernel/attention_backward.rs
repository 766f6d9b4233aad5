//! Backward pass of attention, for whole sequences.

use half::bf16;

use super::attention::{THREADS, TILE, check_heads};
use super::launch::LaunchArguments;
use super::{BatchView, CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Gradients of queries, keys and values, for rows whose whole context is in the batch: their first token has position
/// 0. Probabilities are recomputed from the queries, the cache, and the log-sums written by
/// [`AttendPrefill`](super::AttendPrefill). Three launches: a sum per token and head, then query gradients, then key
/// and value gradients. No atomics are used.
#[derive(Debug, Clone, Copy)]
pub struct AttendBackward {
    /// Batch, of which `first`, `context` and `tables` are read.
    pub batch: BatchView,
    /// Query tiles as in [`AttendPrefill`](super::AttendPrefill).
    pub tiles: DeviceSlice<u32>,
    /// Pairs of a row and a block of sixteen tokens within the row: shape (blocks, 2). A row of [`NONE`](super::NONE)
    /// is padding.
    pub blocks: DeviceSlice<u32>,
    /// Rotated queries: shape (tokens, `stride`), heads first.
    pub qkv: DeviceSlice<bf16>,
    /// Number of values from one token's queries to the next's: (heads + 2 · kv heads) · dim.
    pub stride: u32,
    /// KV blocks of this layer, with the keys and values of all tokens.
    pub cache: DeviceSlice<bf16>,
    /// Output of attention, shape (tokens, heads · dim).
    pub out: DeviceSlice<bf16>,
    /// Gradient of the output, of the same shape.
    pub gradient: DeviceSlice<bf16>,
    /// Log-sums written by [`AttendPrefill`](super::AttendPrefill), shape (tokens, heads).
    pub lse: DeviceSlice<f32>,
    /// Workspace of shape (tokens, heads).
    pub delta: DeviceSlice<f32>,
    /// Gradients of the rotated queries and keys, and of the values: shape (tokens, `stride`). Written at the rows'
    /// tokens.
    pub qkv_gradient: DeviceSlice<bf16>,
    /// Number of tokens of all rows.
    pub tokens: u32,
    /// Number of tiles in the grid.
    pub tile_count: u32,
    /// Number of blocks in the grid.
    pub block_count: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key/value heads; at most 16 query heads share one.
    pub kv_heads: u32,
    /// Width of a head; must be the width that the module was compiled for.
    pub dim: u32,
}

impl AttendBackward {
    /// Launches the three kernels.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::AttendBackwardQueries;
        check_heads(kernel, self.heads, self.kv_heads, self.dim)?;
        let tokens = self.tokens as usize;
        let pairs = tokens * self.heads as usize;
        let width = tokens * self.stride as usize;
        let stride = (self.heads + 2 * self.kv_heads) * self.dim;
        let bound = self.batch.bounds.tokens;
        kernel.demand(bound <= tokens, || format!("{tokens} tokens, but the batch has up to {bound}"))?;
        kernel.demand(u32::try_from(pairs).is_ok(), || format!("{pairs} pairs of a token and a head: too many"))?;
        kernel.demand(self.stride == stride, || format!("a stride of {}: expected {stride}", self.stride))?;
        self.batch.check_rows(kernel)?;
        self.batch.check_cache(kernel, &self.cache, self.kv_heads, self.dim)?;
        kernel.fits("tiles", &self.tiles, 2 * self.tile_count as usize)?;
        kernel.fits("blocks", &self.blocks, 2 * self.block_count as usize)?;
        kernel.fits("qkv", &self.qkv, width)?;
        kernel.fits("qkv_gradient", &self.qkv_gradient, width)?;
        kernel.fits("out", &self.out, pairs * self.dim as usize)?;
        kernel.fits("gradient", &self.gradient, pairs * self.dim as usize)?;
        kernel.fits("lse", &self.lse, pairs)?;
        kernel.fits("delta", &self.delta, pairs)?;
        let sums = LaunchArguments::new().slice(&self.out).slice(&self.gradient).slice(&self.delta).int(pairs as u32);
        let grid = |x: u32, y: u32| Geometry { blocks: [x, y, 1], threads: THREADS, shared: 0 };
        // A warp per sixteen query rows.
        let tiles = Geometry { threads: TILE / 16 * 32, ..grid(self.tile_count, self.kv_heads) };
        // SAFETY: the kernels' parameters. Sizes were checked against the bounds of all indices, which hold by the
        // contract of `DeviceSlice::new`.
        unsafe {
            // One warp per pair, four warps per block.
            sums.launch(on, CudaKernel::AttendDelta, grid((pairs as u32).div_ceil(4), 1))?;
            self.arguments(&self.tiles).launch(on, kernel, tiles)?;
            let keys = CudaKernel::AttendBackwardKeys;
            self.arguments(&self.blocks).launch(on, keys, grid(self.block_count, self.kv_heads))
        }
    }

    fn arguments(&self, work: &DeviceSlice<u32>) -> LaunchArguments {
        LaunchArguments::new()
            .slice(&self.batch.first)
            .slice(&self.batch.context)
            .slice(&self.batch.tables)
            .int(self.batch.stride)
            .slice(work)
            .slice(&self.qkv)
            .int(self.stride)
            .slice(&self.cache)
            .slice(&self.gradient)
            .slice(&self.lse)
            .slice(&self.delta)
            .slice(&self.qkv_gradient)
            .int(self.heads)
    }
}
