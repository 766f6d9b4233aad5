//! Vectors of recent queries, within a number of bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::key::QueryKey;

/// Estimated size of an entry beside its text and its vector: both keys and the nodes of the maps.
const ENTRY_BYTES: usize = 160;

/// Vectors by query. The least recently used ones make room for new ones.
#[derive(Debug, Default)]
pub(super) struct VectorCache {
    vectors: HashMap<QueryKey, CachedVector>,
    /// Queries by the time of their last use.
    used: BTreeMap<u64, QueryKey>,
    clock: u64,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct CachedVector {
    vector: Arc<[f32]>,
    used: u64,
}

impl VectorCache {
    /// Creates a cache of at most `max_bytes` bytes.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// Returns the vector of a query.
    pub(super) fn get(&mut self, query: &QueryKey) -> Option<Arc<[f32]>> {
        let entry = self.vectors.get_mut(query)?;
        let key = self.used.remove(&entry.used)?;
        self.clock += 1;
        entry.used = self.clock;
        self.used.insert(self.clock, key);
        Some(Arc::clone(&entry.vector))
    }

    /// Returns `true` if the vector of a query is cached, without counting this as a use.
    pub(super) fn contains(&self, query: &QueryKey) -> bool {
        self.vectors.contains_key(query)
    }

    /// Adds a vector, unless it is larger than the whole cache or there already.
    pub(super) fn insert(&mut self, query: &QueryKey, vector: &Arc<[f32]>) {
        let bytes = size(query, vector);
        if bytes > self.max_bytes || self.contains(query) {
            return;
        }
        while self.bytes + bytes > self.max_bytes
            && let Some((_, oldest)) = self.used.pop_first()
        {
            if let Some(entry) = self.vectors.remove(&oldest) {
                self.bytes -= size(&oldest, &entry.vector);
            }
        }
        self.clock += 1;
        self.bytes += bytes;
        self.used.insert(self.clock, query.clone());
        self.vectors.insert(query.clone(), CachedVector { vector: Arc::clone(vector), used: self.clock });
    }

    /// Size of the entries in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn size(query: &QueryKey, vector: &[f32]) -> usize {
    query.text.len() + size_of_val(vector) + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(x: f32) -> Arc<[f32]> {
        Arc::from([x; 10])
    }

    fn key(text: &str) -> QueryKey {
        QueryKey::new(0, text)
    }

    #[test]
    fn the_least_recently_used_makes_room() {
        // Three entries of 1 + 40 + 160 bytes.
        let mut cache = VectorCache::new(3 * 201);
        for (text, x) in [("a", 1.0), ("b", 2.0), ("c", 3.0)] {
            cache.insert(&key(text), &vector(x));
        }
        assert_eq!(cache.bytes(), 3 * 201);
        assert_eq!(cache.get(&key("a")), Some(vector(1.0)));
        // Looking whether a vector is there is no use of it.
        assert!(cache.contains(&key("b")));
        cache.insert(&key("d"), &vector(4.0));
        assert_eq!((cache.get(&key("b")), cache.bytes()), (None, 3 * 201));
        for (text, x) in [("a", 1.0), ("c", 3.0), ("d", 4.0)] {
            assert_eq!(cache.get(&key(text)), Some(vector(x)), "{text}");
        }
        assert_eq!((cache.vectors.len(), cache.used.len()), (3, 3));
    }

    #[test]
    fn what_does_not_fit_is_not_kept() {
        let mut cache = VectorCache::new(300);
        cache.insert(&key("a"), &vector(1.0));
        cache.insert(&key(&"x".repeat(200)), &vector(2.0));
        assert_eq!(cache.get(&key("a")), Some(vector(1.0)));
        assert_eq!(cache.bytes(), 201);
        let mut none = VectorCache::new(0);
        none.insert(&key("a"), &vector(1.0));
        assert_eq!((none.get(&key("a")), none.bytes()), (None, 0));
    }

    #[test]
    fn a_repeated_insertion_changes_nothing_and_another_salt_is_another_query() {
        let mut cache = VectorCache::new(1000);
        cache.insert(&key("a"), &vector(1.0));
        cache.insert(&key("a"), &vector(1.0));
        assert_eq!((cache.bytes(), cache.used.len()), (201, 1));
        let salted = QueryKey::new(7, "a");
        assert!(cache.get(&salted).is_none() && !cache.contains(&salted));
        cache.insert(&salted, &vector(2.0));
        assert_eq!((cache.get(&salted), cache.get(&key("a"))), (Some(vector(2.0)), Some(vector(1.0))));
    }
}
