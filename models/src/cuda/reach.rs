//! How far the adapters' kernels reach in a recorded step.
//!
//! Addresses and ranks are read from the card's memory, so that of the loaded adapters a recording depends on two numbers
//! alone: how many tiles there may be, and how wide the widest is. Both are rounded up and never shrink, so that adapters
//! come and go, as they do between the steps of a training run, without a recording becoming wrong.

use super::plan::{ADAPTERS, LARGEST_RANK, STACKED};

/// Adapters that are reckoned with from the first on.
const ROOM: usize = 4;
/// The narrowest stack that is reckoned with: rank 16 of three projections.
const NARROWEST: usize = 16 * STACKED;

/// The grid of the adapters' kernels in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Tiles of tokens.
    pub tiles: usize,
    /// Values per token between shrinking and expanding.
    pub stride: usize,
}

/// What recordings reckon with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    adapters: usize,
    stacked: usize,
}

impl Default for Reach {
    fn default() -> Self {
        Self { adapters: ROOM, stacked: NARROWEST }
    }
}

impl Reach {
    /// Grows to `adapters` adapters, of which the widest stacks `stacked` rows. True when recordings made before do not
    /// reach that far.
    pub fn cover(&mut self, adapters: usize, stacked: usize) -> bool {
        let before = *self;
        self.adapters = self.adapters.max(adapters.next_power_of_two()).min(ADAPTERS);
        while self.stacked < stacked.min(STACKED * LARGEST_RANK) {
            self.stacked = (2 * self.stacked).min(STACKED * LARGEST_RANK);
        }
        *self != before
    }

    /// The grid of a decode step: every way in which `rows` rows can be shared out among the adapters.
    pub fn decode(self, rows: usize) -> Grid {
        Grid { tiles: rows.min(rows / 16 + self.adapters), stride: self.stacked }
    }

    /// The grid of a step that is cut into this many tiles.
    pub fn tiles(self, tiles: usize) -> Grid {
        Grid { tiles, stride: self.stacked }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cuda::kernel::lora_tiles;

    #[test]
    fn adapters_of_one_kind_come_and_go_without_a_change() {
        let mut reach = Reach::default();
        for adapters in [1, 2, 1, 3, 4, 0] {
            assert!(!reach.cover(adapters, 48), "{adapters}");
        }
        assert!(reach.cover(5, 48) && reach.cover(5, 49) && !reach.cover(8, 96) && !reach.cover(1, 16));
        assert_eq!(reach.decode(64), Grid { tiles: 12, stride: 96 });
        assert!(reach.cover(ADAPTERS, STACKED * LARGEST_RANK));
        assert_eq!(reach.decode(8).stride, STACKED * LARGEST_RANK);
        assert_eq!(reach.decode(256).tiles, 16 + ADAPTERS);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever rows have whichever adapters, a decode step's tiles are within its grid, and strides fit their kernels.
        #[test]
        fn every_step_is_within_its_grid(
            owners in prop::collection::vec(0u32..40, 1..200),
            stacked in (1usize..=STACKED * LARGEST_RANK / 16).prop_map(|tiles| tiles * 16),
        ) {
            let loaded = owners.iter().copied().max().unwrap_or(0) as usize + 1;
            let mut reach = Reach::default();
            reach.cover(loaded, stacked);
            let grid = reach.decode(owners.len());
            prop_assert!(lora_tiles(&owners).0.len() <= grid.tiles && grid.tiles <= owners.len());
            prop_assert!(grid.stride >= stacked && grid.stride.is_multiple_of(16));
            prop_assert!(grid.stride <= STACKED * LARGEST_RANK);
        }
    }
}
