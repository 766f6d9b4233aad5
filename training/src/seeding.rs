//! Seeded shuffles and batches. Every random choice of a run derives from the run's seed and from the place of the
//! choice, so a resumed run makes the same choices.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::hash::fnv1a;

/// Derives the seed of choice number `at` of kind `kind`. Different kinds get independent seeds.
pub fn seed(seed: u64, kind: &str, at: u64) -> u64 {
    // FNV instead of the standard hasher, whose result may change between releases and would break resuming.
    fnv1a(seed.to_le_bytes().into_iter().chain(kind.bytes()).chain(at.to_le_bytes()))
}

/// Returns the numbers below `count`, shuffled with `seed`.
pub fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    order
}

/// Returns the indices of batch `step` (counted from 0) with `size` of `count` items. Each epoch visits every item
/// once, in an order of its own, and one batch may span two epochs. With `count` 0, every batch is empty.
pub fn batch(count: usize, size: usize, step: u64, seed_of: impl Fn(u64) -> u64) -> Vec<usize> {
    if count == 0 {
        return Vec::new();
    }
    let mut epoch = None;
    let mut order = Vec::new();
    let first = step * size as u64;
    let item = |at: u64| {
        let current = at / count as u64;
        // Shuffled only when the epoch changes, not for every item.
        if epoch != Some(current) {
            epoch = Some(current);
            order = shuffled(count, seed_of(current));
        }
        order[(at % count as u64) as usize]
    };
    (first..first + size as u64).map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_sees_everything_once() {
        let of = |epoch| seed(7, "epoch", epoch);
        let seen: Vec<usize> = (0..10).flat_map(|step| batch(5, 2, step, of)).collect();
        for epoch in seen.chunks(5) {
            let mut epoch = epoch.to_vec();
            epoch.sort_unstable();
            assert_eq!(epoch, [0, 1, 2, 3, 4]);
        }
        assert_ne!(shuffled(50, of(0)), shuffled(50, of(1)));
        assert_eq!(batch(3, 8, 0, of).len(), 8);
        assert!(batch(0, 8, 3, of).is_empty());
    }

    #[test]
    fn seeds_depend_on_every_argument() {
        let seeds = [seed(1, "a", 0), seed(2, "a", 0), seed(1, "b", 0), seed(1, "a", 1)];
        assert!((0..4).all(|i| (0..i).all(|j| seeds[i] != seeds[j])));
    }
}
