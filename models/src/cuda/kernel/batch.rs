//! A step's batch in device memory.

use super::{CudaKernel, DeviceSlice, KernelError, layout};

/// Stands for no row, no token or no adapter in device memory.
pub const NONE: u32 = u32::MAX;

/// Device buffers of a step's layout. They may be longer than the step: kernels read as much as their grid covers, and
/// padding entries are marked with [`NONE`].
#[derive(Debug, Clone, Copy)]
pub struct BatchView {
    /// Id of each token, or [`NONE`].
    pub tokens: DeviceSlice<u32>,
    /// Position of each token in its sequence.
    pub positions: DeviceSlice<u32>,
    /// Row of each token, [`NONE`] for padding.
    pub rows: DeviceSlice<u32>,
    /// Index of each row's first new token.
    pub first: DeviceSlice<u32>,
    /// Number of each row's positions in the cache, including those of this step; 0 for padding.
    pub context: DeviceSlice<u32>,
    /// Block table of each row, shape (rows, `stride`).
    pub tables: DeviceSlice<u32>,
    /// Number of entries from one row's table to the next.
    pub stride: u32,
    /// Bounds of the indices in these buffers.
    pub bounds: BatchBounds,
}

/// Exclusive upper bounds of the indices in a [`BatchView`] and in the tiles that refer to it. Indices are in device
/// memory, where a launch cannot read them: it requires buffers that are large enough for every index below its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchBounds {
    /// Bound of rows.
    pub rows: usize,
    /// Bound of tokens.
    pub tokens: usize,
    /// Bound of positions, and of context lengths minus one.
    pub positions: usize,
    /// Bound of the KV blocks in tables.
    pub blocks: usize,
}

/// Indices of rows in other buffers, in device memory: each is below `bound`, or [`NONE`].
#[derive(Debug, Clone, Copy)]
pub struct RowIndex {
    /// Indices.
    pub rows: DeviceSlice<u32>,
    /// Exclusive upper bound of the indices.
    pub bound: usize,
}

impl BatchView {
    /// Returns an error if the tables are too small for every row.
    pub(super) fn check_tables(&self, kernel: CudaKernel) -> Result<(), KernelError> {
        kernel.fits("tables", &self.tables, self.bounds.rows * self.stride as usize)
    }

    /// Returns an error if `first`, `context` or the tables are too small for every row.
    pub(super) fn check_rows(&self, kernel: CudaKernel) -> Result<(), KernelError> {
        kernel.fits("first", &self.first, self.bounds.rows)?;
        kernel.fits("context", &self.context, self.bounds.rows)?;
        self.check_tables(kernel)
    }

    /// Returns an error if the KV cache of a layer is too small for every block.
    pub(super) fn check_cache<T>(
        &self,
        kernel: CudaKernel,
        cache: &DeviceSlice<T>,
        kv_heads: u32,
        dim: u32,
    ) -> Result<(), KernelError> {
        kernel.fits("cache", cache, self.bounds.blocks * layout::block_len(kv_heads as usize, dim as usize))
    }
}
