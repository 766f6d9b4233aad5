//! A step's batch in device memory.

use super::DeviceSlice;

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
}
