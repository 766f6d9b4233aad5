//! Map that is cheap to clone while it grows: snapshots share the entries that they do not change.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::Arc;

use crate::split_mix::{STEP, finalize};

/// Minimum ratio of the sizes of a layer and the next newer one.
const RATIO: usize = 4;

/// Map in layers that clones share, each several times as large as the next newer one.
#[derive(Debug, Clone)]
pub(crate) struct Layered<K, V, S = RandomState> {
    /// Layers, the oldest first.
    layers: Vec<Arc<HashMap<K, V, S>>>,
    /// Entries inserted since the last call of [`settle`](Self::settle).
    new: HashMap<K, V, S>,
}

/// Map keyed by numbers that the index assigns. Clients cannot choose these keys, so the hash need not withstand
/// collision attacks.
pub(crate) type LayeredNumbers<K, V> = Layered<K, V, BuildHasherDefault<NumberHasher>>;

impl<K, V, S: Default> Default for Layered<K, V, S> {
    fn default() -> Layered<K, V, S> {
        Layered { layers: Vec::new(), new: HashMap::default() }
    }
}

impl<K: Hash + Eq + Clone, V: Clone, S: BuildHasher + Clone + Default> Layered<K, V, S> {
    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let layers = std::iter::once(&self.new).chain(self.layers.iter().rev().map(Arc::as_ref));
        // Hashes nothing for a layer without entries.
        layers.filter(|layer| !layer.is_empty()).find_map(|layer| layer.get(key))
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.new.insert(key, value);
    }

    /// Makes the new entries a layer of their own, merged with the layers that are not much larger. Called once per
    /// commit, so that a clone copies no entry, and an entry is copied a logarithmic number of times.
    pub(crate) fn settle(&mut self) {
        if self.new.is_empty() {
            return;
        }
        let mut top = std::mem::take(&mut self.new);
        while let Some(layer) = self.layers.pop_if(|layer| layer.len() < RATIO * top.len()) {
            let mut merged = Arc::unwrap_or_clone(layer);
            merged.extend(top);
            top = merged;
        }
        self.layers.push(Arc::new(top));
    }
}

/// Hasher for keys of a few numbers. Applies the mixing function of SplitMix64 after each number.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for eight in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..eight.len()].copy_from_slice(eight);
            self.write_u64(u64::from_le_bytes(number));
        }
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = finalize((self.0.rotate_left(5) ^ number).wrapping_add(STEP));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_earlier_clone_keeps_its_values() {
        let mut map: LayeredNumbers<u32, u32> = Layered::default();
        let mut earlier = Vec::new();
        for round in 0..20_u32 {
            (0..round * 50).for_each(|key| map.insert(key, round));
            map.settle();
            earlier.push(map.clone());
        }
        for (round, map) in (0..).zip(&earlier) {
            assert!((0..round * 50).all(|key| map.get(&key) == Some(&round)));
            assert_eq!(map.get(&(round * 50)), None);
        }
    }

    #[test]
    fn small_changes_copy_few_entries() {
        let mut map: LayeredNumbers<u32, u32> = Layered::default();
        (0..10_000).for_each(|key| map.insert(key, 0));
        map.settle();
        let large = Arc::clone(&map.layers[0]);
        for round in 1..=500 {
            map.insert(round * 3, round);
            map.settle();
            assert!(map.layers.len() <= 8, "{} layers", map.layers.len());
        }
        assert!(Arc::ptr_eq(&large, &map.layers[0]), "the large layer is shared, not copied");
        assert!((1..=500).all(|round| map.get(&(round * 3)) == Some(&round)));
        assert_eq!(map.get(&1), Some(&0));
    }
}
