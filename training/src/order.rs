//! Seeded orders. Every random choice of a run derives from its seed and from where it is made, so that a run that is
//! resumed makes the same choices.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::hash::fnv1a;

/// A seed for choice `at` of the kind `kind`, which tells choices of different kinds apart.
pub fn seed(seed: u64, kind: &str, at: u64) -> u64 {
    fnv1a(seed.to_le_bytes().into_iter().chain(kind.bytes()).chain(at.to_le_bytes()))
}

/// The numbers below `count` in an order that `seed` makes.
pub fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    order
}

/// Batch `step`, counted from 0, of `size` of `count` things: each epoch goes through all of them in an order of its own,
/// and a batch may end one epoch and begin the next. Of nothing there are only empty batches.
pub fn batch(count: usize, size: usize, step: u64, seed_of: impl Fn(u64) -> u64) -> Vec<usize> {
    if count == 0 {
        return Vec::new();
    }
    let mut epoch = None;
    let mut order = Vec::new();
    let first = step * size as u64;
    let place = |at: u64| {
        let own = at / count as u64;
        if epoch != Some(own) {
            (epoch, order) = (Some(own), shuffled(count, seed_of(own)));
        }
        order[(at % count as u64) as usize]
    };
    (first..first + size as u64).map(place).collect()
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
    fn seeds_differ_by_each_part() {
        let seeds = [seed(1, "a", 0), seed(2, "a", 0), seed(1, "b", 0), seed(1, "a", 1)];
        assert!((0..4).all(|i| (0..i).all(|j| seeds[i] != seeds[j])));
    }
}
