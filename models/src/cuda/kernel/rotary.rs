//! Processing of queries, keys and values between their projection and attention.

use half::bf16;

use super::launch::LaunchArguments;
use super::{BatchView, CudaKernel, DeviceSlice, Geometry, KernelError, Launch, layout};
use crate::batch::BLOCK;

/// Threads per block.
const THREADS: u32 = 128;

/// Adds biases, normalizes per head, and rotates queries and keys, in `f32`. Queries are written back in place, keys
/// and values into the KV cache. Each head's first half is rotated against its second half, as in
/// [`Rope`](crate::kernel::rope::Rope).
///
/// A token of row [`NONE`](super::NONE) writes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Rotary {
    /// Batch, of which `positions`, `rows` and `tables` are read.
    pub batch: BatchView,
    /// Queries, keys and values side by side, shape (tokens, (heads + 2 · kv heads) · dim). The queries are modified in
    /// place.
    pub qkv: DeviceSlice<bf16>,
    /// Biases, added first (Qwen2), shape ((heads + 2 · kv heads) · dim). `None` for models without them.
    pub bias: Option<DeviceSlice<f32>>,
    /// Weights of the RMS norm per head of queries and of keys (Qwen3), each of shape (dim). `None` for models without
    /// them.
    pub head_norms: Option<[DeviceSlice<f32>; 2]>,
    /// Rotary table of [`Rope`](crate::kernel::rope::Rope): `dim / 2` cosines and as many sines per position.
    pub table: DeviceSlice<f32>,
    /// KV blocks of this layer in the format of [`layout`]. Written.
    pub cache: DeviceSlice<bf16>,
    /// Number of tokens in the grid.
    pub count: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key/value heads.
    pub kv_heads: u32,
    /// Width of a head; must be the width that the module was compiled for.
    pub dim: u32,
    /// Epsilon of the norm per head, added to the mean square.
    pub eps: f32,
}

impl Rotary {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::Rotary;
        let count = self.count as usize;
        let dim = self.dim as usize;
        let width = (self.heads + 2 * self.kv_heads) as usize * dim;
        kernel.demand(layout::HEAD_DIMS.contains(&dim), || format!("no kernel for heads of width {dim}"))?;
        kernel.fits("positions", &self.batch.positions, count)?;
        kernel.fits("rows", &self.batch.rows, count)?;
        self.batch.check_tables(kernel)?;
        let positions = self.batch.bounds.positions;
        kernel.demand(positions.div_ceil(BLOCK) <= self.batch.stride as usize, || {
            format!("{positions} positions, but tables of {} blocks", self.batch.stride)
        })?;
        kernel.fits("table", &self.table, positions * dim)?;
        self.batch.check_cache(kernel, &self.cache, self.kv_heads, self.dim)?;
        kernel.fits("qkv", &self.qkv, count * width)?;
        if let Some(bias) = &self.bias {
            kernel.fits("bias", bias, width)?;
        }
        for norm in self.head_norms.iter().flatten() {
            kernel.fits("head norm", norm, dim)?;
        }
        let norms = self.head_norms.as_ref();
        let arguments = LaunchArguments::new()
            .slice(&self.batch.positions)
            .slice(&self.batch.rows)
            .slice(&self.batch.tables)
            .int(self.batch.stride)
            .slice(&self.qkv)
            .maybe(self.bias.as_ref())
            .maybe(norms.map(|norms| &norms[0]))
            .maybe(norms.map(|norms| &norms[1]))
            .slice(&self.table)
            .slice(&self.cache)
            .int(self.heads)
            .int(self.kv_heads)
            .float(self.eps);
        let heads = self.heads + 2 * self.kv_heads;
        let blocks = [self.count, heads.div_ceil(THREADS / 32), 1];
        // SAFETY: the parameters of `rotary`. Sizes were checked against the bounds of all indices, which hold by the
        // contract of `DeviceSlice::new`.
        unsafe { arguments.launch(on, kernel, Geometry { blocks, threads: THREADS, shared: 0 }) }
    }
}
