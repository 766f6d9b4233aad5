//! Grid sizes of the LoRA kernels in captured graphs.
//!
//! The kernels read addresses and ranks from device memory, so a captured graph depends on only two properties of the
//! loaded adapters: the maximum number of tiles, and the largest stacked rank. Both are rounded up and never shrink, so
//! adapters can be loaded and unloaded, for example between the steps of a training run, without invalidating a graph.

use super::plan::{MAX_ADAPTERS, MAX_RANK, MAX_STACKED};

/// Initial capacity, in adapters.
const ROOM: usize = 4;
/// Initial capacity, in stacked rows: rank 16 for three projections.
const NARROWEST: usize = 16 * MAX_STACKED;

/// Grid of the LoRA kernels in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoraGrid {
    /// Number of tiles of tokens.
    pub tiles: usize,
    /// Number of values per token between the shrink and the expand kernel.
    pub stride: usize,
}

/// Adapters and stacked rows that captured graphs provide for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoraCapacity {
    adapters: usize,
    stacked: usize,
}

impl Default for LoraCapacity {
    fn default() -> Self {
        Self { adapters: ROOM, stacked: NARROWEST }
    }
}

impl LoraCapacity {
    /// Grows to `adapters` adapters with at most `stacked` stacked rows. Returns `true` when existing graphs have
    /// become too small.
    pub fn cover(&mut self, adapters: usize, stacked: usize) -> bool {
        let before = *self;
        self.adapters = self.adapters.max(adapters.next_power_of_two()).min(MAX_ADAPTERS);
        while self.stacked < stacked.min(MAX_STACKED * MAX_RANK) {
            self.stacked = (2 * self.stacked).min(MAX_STACKED * MAX_RANK);
        }
        *self != before
    }

    /// Returns the grid of a decode step, large enough for every distribution of `rows` rows over the adapters.
    pub fn decode(self, rows: usize) -> LoraGrid {
        // A tile holds up to sixteen rows of one adapter, and each adapter may leave its last tile partly filled.
        LoraGrid { tiles: rows.min(rows / 16 + self.adapters), stride: self.stacked }
    }

    /// Returns the grid of a step with this number of tiles.
    pub fn tiles(self, tiles: usize) -> LoraGrid {
        LoraGrid { tiles, stride: self.stacked }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cuda::kernel::lora_tiles;

    #[test]
    fn adapters_of_one_kind_come_and_go_without_a_change() {
        let mut capacity = LoraCapacity::default();
        for adapters in [1, 2, 1, 3, 4, 0] {
            assert!(!capacity.cover(adapters, 48), "{adapters}");
        }
        assert!(capacity.cover(5, 48) && capacity.cover(5, 49) && !capacity.cover(8, 96) && !capacity.cover(1, 16));
        assert_eq!(capacity.decode(64), LoraGrid { tiles: 12, stride: 96 });
        assert!(capacity.cover(MAX_ADAPTERS, MAX_STACKED * MAX_RANK));
        assert_eq!(capacity.decode(8).stride, MAX_STACKED * MAX_RANK);
        assert_eq!(capacity.decode(256).tiles, 16 + MAX_ADAPTERS);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// For every assignment of adapters to rows, the tiles of a decode step lie within its grid, and strides suit
        /// the kernels.
        #[test]
        fn every_step_is_within_its_grid(
            owners in prop::collection::vec(0u32..40, 1..200),
            stacked in (1usize..=MAX_STACKED * MAX_RANK / 16).prop_map(|tiles| tiles * 16),
        ) {
            let loaded = owners.iter().copied().max().unwrap_or(0) as usize + 1;
            let mut capacity = LoraCapacity::default();
            capacity.cover(loaded, stacked);
            let grid = capacity.decode(owners.len());
            prop_assert!(lora_tiles(&owners).0.len() <= grid.tiles && grid.tiles <= owners.len());
            prop_assert!(grid.stride >= stacked && grid.stride.is_multiple_of(16));
            prop_assert!(grid.stride <= MAX_STACKED * MAX_RANK);
        }
    }
}
