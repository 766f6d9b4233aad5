//! Map that is cheap to clone while it grows: snapshots share what they do not change.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Size up to which the newer layer is not merged into the older one.
const SMALL: usize = 512;

/// Map in two layers: a large shared one and a small one of newer entries, which alone is copied by a clone.
#[derive(Debug, Clone)]
pub(crate) struct Layered<K, V> {
    old: Arc<HashMap<K, V>>,
    new: HashMap<K, V>,
}

impl<K, V> Default for Layered<K, V> {
    fn default() -> Layered<K, V> {
        Layered { old: Arc::default(), new: HashMap::new() }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Layered<K, V> {
    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.new.get(key).or_else(|| self.old.get(key))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_earlier_clone_keeps_its_values() {
        let mut map = Layered::default();
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
