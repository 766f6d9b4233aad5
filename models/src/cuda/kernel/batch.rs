//! A step's batch as kernels read it from device memory.

use super::Span;

/// In device memory: no row, no token, no adapter.
pub const NONE: u32 = u32::MAX;

/// Where a step's layout lies. Buffers may be longer than the step: kernels read as much as their grid covers, and padding
/// says that it is padding.
#[derive(Debug, Clone, Copy)]
pub struct BatchView {
    /// Per token: its id, or [`NONE`].
    pub tokens: Span<u32>,
    /// Per token: its position in its sequence.
    pub positions: Span<u32>,
    /// Per token: its row, [`NONE`] for padding.
    pub rows: Span<u32>,
    /// Per row: index of its first new token.
    pub first: Span<u32>,
    /// Per row: positions in the cache, those of this step included; 0 for padding.
    pub context: Span<u32>,
    /// Per row: its block table, shape (rows, `stride`).
    pub tables: Span<u32>,
    /// Entries from one row's table to the next.
    pub stride: u32,
}
