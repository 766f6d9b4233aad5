//! Map that is cheap to clone while it grows: snapshots share what they do not change.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::Arc;

/// Size up to which the newer layer is not merged into the older one.
const SMALL: usize = 512;

/// Map in two layers: a large shared one and a small one of newer entries, which alone is copied by a clone.
#[derive(Debug, Clone)]
pub(crate) struct Layered<K, V, S = RandomState> {
    old: Arc<HashMap<K, V, S>>,
    new: HashMap<K, V, S>,
}

/// Map keyed by numbers that this program gives out, which no client can choose: searches look up each node that they
/// visit, and a hash that resists chosen keys would take most of their time.
pub(crate) type LayeredNumbers<K, V> = Layered<K, V, BuildHasherDefault<NumberHasher>>;

impl<K, V, S: Default> Default for Layered<K, V, S> {
    fn default() -> Layered<K, V, S> {
        Layered { old: Arc::default(), new: HashMap::default() }
    }
}

impl<K: Hash + Eq + Clone, V: Clone, S: BuildHasher + Clone + Default> Layered<K, V, S> {
    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        // Hashes nothing for a layer without entries.
        let new = if self.new.is_empty() { None } else { self.new.get(key) };
        new.or_else(|| if self.old.is_empty() { None } else { self.old.get(key) })
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.new.insert(key, value);
    }

    /// Returns `true` if nothing was ever inserted.
    pub(crate) fn is_empty(&self) -> bool {
        self.old.is_empty() && self.new.is_empty()
    }

    /// Iterates over the newest value of every key, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let old = self.old.iter().filter(|(key, _)| !self.new.contains_key(key));
        self.new.iter().chain(old)
    }

    /// Merges the layers once the newer one is large. Called once per commit, so that a clone copies little and an entry
    /// is copied a logarithmic number of times.
    pub(crate) fn settle(&mut self) {
        if self.new.len() > SMALL.max(self.old.len() / 4) {
            let new = std::mem::take(&mut self.new);
            Arc::make_mut(&mut self.old).extend(new);
        }
    }
}

/// Hasher of a few numbers: the mixer of SplitMix64 after each.
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
        let sum = (self.0.rotate_left(5) ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let sum = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let sum = (sum ^ (sum >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = sum ^ (sum >> 31);
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
            assert_eq!(map.iter().count() as u32, round * 50);
            assert!((0..round * 50).all(|key| map.get(&key) == Some(&round)));
        }
    }
}
