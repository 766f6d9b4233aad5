//! Causal attention over the paged KV cache, for rows with one new token (decode) and with many (prefill).

use half::bf16;

use super::launch::LaunchArguments;
use super::{BatchView, CudaKernel, DeviceSlice, Geometry, KernelError, Launch, layout};

/// Threads per block.
pub(super) const THREADS: u32 = 128;

/// Maximum number of parts of a context in decoding, as in `attention.cu`.
const MAX_SPLITS: u32 = 64;

/// Number of values per part and head besides its sum: highest score, total, and two that keep the next part aligned.
const PART_ENDS: usize = 4;

/// Packed query rows (positions times heads of a group) per tile: 32 for each of four warps.
pub(super) const TILE: u32 = 128;

/// Decode attention, for the rows `0..rows` of the batch, which have one token each. The context is split among the
/// warps of a block and among `splits` blocks; the last block to finish combines the parts, in their order.
///
/// For a row with context 0, the kernel writes zeros as the output of the token `first`, unless `first` is
/// [`NONE`](super::NONE).
#[derive(Debug, Clone, Copy)]
pub struct AttendDecode {
    /// Batch, of which `first`, `context` and `tables` are read.
    pub batch: BatchView,
    /// Queries as written by [`Rotary`](super::Rotary): shape (tokens, `stride`), heads first.
    pub qkv: DeviceSlice<bf16>,
    /// Number of values from one token's queries to the next's.
    pub stride: u32,
    /// KV blocks of this layer, including the new keys and values.
    pub cache: DeviceSlice<bf16>,
    /// Partial results: [`Self::workspace`] values.
    pub workspace: DeviceSlice<f32>,
    /// Counters, one per row and key/value head; zero before the first launch, and again after each.
    pub arrived: DeviceSlice<u32>,
    /// Output of shape (tokens, heads · dim). Written at each row's token.
    pub out: DeviceSlice<bf16>,
    /// Number of rows in the grid.
    pub rows: u32,
    /// Maximum number of parts that a context is split into, 1 to 64; short contexts use fewer. Choose it with
    /// [`Self::splits_for`], from `rows`, the GPU and the maximum context length rather than the contexts of the step.
    pub splits: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key/value heads; at most 16 query heads share one.
    pub kv_heads: u32,
    /// Width of a head; must be the width that the module was compiled for.
    pub dim: u32,
}

impl AttendDecode {
    /// Returns the number of workspace values of a launch.
    pub fn workspace(rows: u32, splits: u32, heads: u32, dim: u32) -> usize {
        rows as usize * heads as usize * splits as usize * (dim as usize + PART_ENDS)
    }

    /// Returns a number of splits that gives each of `multiprocessors` multiprocessors a few blocks, without splitting
    /// a context of the maximum length `longest` into parts much shorter than 128 tokens.
    pub fn splits_for(rows: u32, kv_heads: u32, multiprocessors: u32, longest: u32) -> u32 {
        // Four blocks per multiprocessor hide the latency of memory; a part below 128 tokens is not worth its overhead.
        let wanted = (4 * multiprocessors).div_ceil((rows * kv_heads).max(1));
        wanted.clamp(1, MAX_SPLITS).min(longest.div_ceil(128).max(1))
    }

    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::AttendDecode;
        check_heads(kernel, self.heads, self.kv_heads, self.dim)?;
        kernel.demand((1..=MAX_SPLITS).contains(&self.splits), || {
            format!("{} splits: expected 1 to {MAX_SPLITS}", self.splits)
        })?;
        let rows = self.rows as usize;
        let bound = self.batch.bounds.rows;
        kernel.demand(rows <= bound, || format!("{rows} rows in the grid, but the batch has {bound} at most"))?;
        self.batch.check_rows(kernel)?;
        let tokens = self.batch.bounds.tokens;
        check_heads_stride(kernel, self.stride, self.heads, self.dim)?;
        kernel.fits("qkv", &self.qkv, tokens * self.stride as usize)?;
        self.batch.check_cache(kernel, &self.cache, self.kv_heads, self.dim)?;
        kernel.fits("out", &self.out, tokens * self.heads as usize * self.dim as usize)?;
        kernel.fits("workspace", &self.workspace, Self::workspace(self.rows, self.splits, self.heads, self.dim))?;
        kernel.fits("arrived", &self.arrived, rows * self.kv_heads as usize)?;
        let arguments = LaunchArguments::new()
            .slice(&self.batch.first)
            .slice(&self.batch.context)
            .slice(&self.batch.tables)
            .int(self.batch.stride)
            .slice(&self.qkv)
            .int(self.stride)
            .slice(&self.cache)
            .slice(&self.workspace)
            .slice(&self.arrived)
            .slice(&self.out)
            .int(self.heads);
        let geometry = Geometry { blocks: [self.splits, self.kv_heads, self.rows], threads: THREADS, shared: 0 };
        // SAFETY: these are the parameters of `attend_decode`. Sizes were checked against the bounds of all indices,
        // which hold by the contract of `DeviceSlice::new`.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}

/// Prefill attention of any rows with any number of new tokens, cut into tiles ([`prefill_tiles`]).
#[derive(Debug, Clone, Copy)]
pub struct AttendPrefill {
    /// Batch, of which `positions`, `first`, `context` and `tables` are read.
    pub batch: BatchView,
    /// Pairs of a row and a tile index within the row: shape (tiles, 2). A row of [`NONE`](super::NONE) is padding.
    pub tiles: DeviceSlice<u32>,
    /// Queries as written by [`Rotary`](super::Rotary): shape (tokens, `stride`), heads first.
    pub qkv: DeviceSlice<bf16>,
    /// Number of values from one token's queries to the next's.
    pub stride: u32,
    /// KV blocks of this layer, including the new keys and values.
    pub cache: DeviceSlice<bf16>,
    /// Output of shape (tokens, heads · dim). Written at the rows' tokens.
    pub out: DeviceSlice<bf16>,
    /// For training: the base-2 logarithm of the sum of `exp(q · k / √dim)` over the context of each token and head,
    /// shape (tokens, heads). Written at the rows' tokens. `None` omits it.
    pub lse: Option<DeviceSlice<f32>>,
    /// Number of tiles in the grid.
    pub count: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key/value heads; at most 16 query heads share one.
    pub kv_heads: u32,
    /// Width of a head; must be the width that the module was compiled for.
    pub dim: u32,
}

/// Returns the number of tiles of a row with `tokens` new tokens. The last tile of the longest context is the most
/// expensive: list tiles in descending order of cost.
pub fn prefill_tiles(tokens: u32, heads: u32, kv_heads: u32) -> u32 {
    (tokens * (heads / kv_heads)).div_ceil(TILE)
}

impl AttendPrefill {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::AttendPrefill;
        check_heads(kernel, self.heads, self.kv_heads, self.dim)?;
        kernel.fits("tiles", &self.tiles, 2 * self.count as usize)?;
        self.batch.check_rows(kernel)?;
        let tokens = self.batch.bounds.tokens;
        let heads = self.heads as usize;
        check_heads_stride(kernel, self.stride, self.heads, self.dim)?;
        kernel.fits("positions", &self.batch.positions, tokens)?;
        kernel.fits("qkv", &self.qkv, tokens * self.stride as usize)?;
        self.batch.check_cache(kernel, &self.cache, self.kv_heads, self.dim)?;
        kernel.fits("out", &self.out, tokens * heads * self.dim as usize)?;
        if let Some(lse) = &self.lse {
            kernel.fits("lse", lse, tokens * heads)?;
        }
        let arguments = LaunchArguments::new()
            .slice(&self.batch.positions)
            .slice(&self.batch.first)
            .slice(&self.batch.context)
            .slice(&self.batch.tables)
            .int(self.batch.stride)
            .slice(&self.tiles)
            .slice(&self.qkv)
            .int(self.stride)
            .slice(&self.cache)
            .slice(&self.out)
            .maybe(self.lse.as_ref())
            .int(self.heads);
        let geometry = Geometry { blocks: [self.count, self.kv_heads, 1], threads: THREADS, shared: 0 };
        // SAFETY: these are the parameters of `attend_prefill`. Sizes were checked against the bounds of all indices,
        // which hold by the contract of `DeviceSlice::new`.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}

/// Returns an error if a token's queries are wider than `stride`, or not aligned to the sixteen bytes of a load.
fn check_heads_stride(kernel: CudaKernel, stride: u32, heads: u32, dim: u32) -> Result<(), KernelError> {
    let queries = heads as usize * dim as usize;
    kernel.demand(stride as usize >= queries && stride.is_multiple_of(8), || {
        format!("a stride of {stride}: expected a multiple of 8, {queries} or more")
    })
}

pub(super) fn check_heads(kernel: CudaKernel, heads: u32, kv_heads: u32, dim: u32) -> Result<(), KernelError> {
    let known = layout::HEAD_DIMS.contains(&(dim as usize));
    kernel.demand(known, || format!("no kernel for heads of width {dim}"))?;
    let grouped = kv_heads > 0 && heads.is_multiple_of(kv_heads) && heads / kv_heads <= layout::LARGEST_GROUP as u32;
    kernel.demand(grouped, || format!("{heads} query heads and {kv_heads} key/value heads: expected groups of 1 to 16"))
}
