//! Bounded in-memory store of values by ID. When it is full, the oldest values are evicted.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::metrics::StoreSize;

/// Bounded store of values by ID; clones share it. Reading a value does not make it younger.
pub(crate) struct Archive<T> {
    state: Arc<Mutex<ArchiveState<T>>>,
    most: usize,
    bytes: usize,
}

struct ArchiveState<T> {
    kept: HashMap<Arc<str>, ArchiveEntry<T>>,
    /// IDs by insertion order: the first is the oldest.
    ages: BTreeMap<u64, Arc<str>>,
    /// Total size of all values.
    bytes: usize,
    clock: u64,
}

struct ArchiveEntry<T> {
    value: Arc<T>,
    bytes: usize,
    age: u64,
}

impl<T> Archive<T> {
    /// Creates a store of at most `most` values and `bytes` bytes. With either limit 0 it stores nothing.
    pub(crate) fn new(most: usize, bytes: usize) -> Self {
        let state = ArchiveState { kept: HashMap::new(), ages: BTreeMap::new(), bytes: 0, clock: 0 };
        Self { state: Arc::new(Mutex::new(state)), most, bytes }
    }

    /// Returns `true` if the store can hold anything.
    pub(crate) fn is_enabled(&self) -> bool {
        self.most > 0 && self.bytes > 0
    }

    /// Stores `value`, which takes `bytes` bytes, and replaces the value with the same ID. Evicts the oldest values to
    /// make room. A value larger than the whole store is dropped.
    pub(crate) fn insert(&self, id: String, value: Arc<T>, bytes: usize) {
        let mut gone = Vec::new();
        let mut state = self.lock();
        gone.extend(state.remove(&id));
        if self.is_enabled() && bytes <= self.bytes {
            // The subtraction cannot underflow: `bytes <= self.bytes` was checked above.
            while state.kept.len() >= self.most || state.bytes > self.bytes - bytes {
                let Some(value) = state.remove_oldest() else { break };
                gone.push(value);
            }
            state.put(id, value, bytes);
        }
        // Evicted values are dropped after the lock is released, because dropping a large value takes time.
        drop(state);
    }

    /// Returns the value stored under `id`.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<T>> {
        self.lock().kept.get(id).map(|kept| kept.value.clone())
    }

    /// Removes the value stored under `id` and returns it.
    pub(crate) fn remove(&self, id: &str) -> Option<Arc<T>> {
        self.lock().remove(id)
    }

    /// Returns the `most` youngest values that match `wanted`, youngest first.
    pub(crate) fn youngest(&self, most: usize, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let state = self.lock();
        let values = state.ages.values().rev().filter_map(|id| state.kept.get(id)).map(|kept| &kept.value);
        values.filter(|value| wanted(value)).take(most).cloned().collect()
    }

    /// Returns the number of values and their total size.
    pub(crate) fn size(&self) -> StoreSize {
        let state = self.lock();
        StoreSize { count: state.kept.len(), bytes: state.bytes }
    }

    fn lock(&self) -> MutexGuard<'_, ArchiveState<T>> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> ArchiveState<T> {
    fn put(&mut self, id: String, value: Arc<T>, bytes: usize) {
        let (id, age): (Arc<str>, _) = (id.into(), self.clock);
        // A counter instead of the time, which may repeat or jump back.
        self.clock += 1;
        self.bytes += bytes;
        self.ages.insert(age, id.clone());
        self.kept.insert(id, ArchiveEntry { value, bytes, age });
    }

    fn remove(&mut self, id: &str) -> Option<Arc<T>> {
        let kept = self.kept.remove(id)?;
        self.ages.remove(&kept.age);
        self.bytes -= kept.bytes;
        Some(kept.value)
    }

    fn remove_oldest(&mut self) -> Option<Arc<T>> {
        let id = self.ages.first_key_value()?.1.clone();
        self.remove(&id)
    }
}

impl<T> Clone for Archive<T> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), most: self.most, bytes: self.bytes }
    }
}

impl<T> fmt::Debug for Archive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Archive").field("kept", &state.kept.len()).field("bytes", &state.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum ArchiveStep {
        Insert(u8, usize),
        Get(u8),
        Remove(u8),
        Youngest(usize),
    }

    fn step() -> impl Strategy<Value = ArchiveStep> {
        prop_oneof![
            4 => (0..8u8, 0..40usize).prop_map(|(id, bytes)| ArchiveStep::Insert(id, bytes)),
            1 => (0..8u8).prop_map(ArchiveStep::Get),
            1 => (0..8u8).prop_map(ArchiveStep::Remove),
            1 => (0..10usize).prop_map(ArchiveStep::Youngest),
        ]
    }

    /// Reference model: a list, oldest first.
    struct ReferenceList {
        list: Vec<(u8, u32, usize)>,
        most: usize,
        bytes: usize,
    }

    impl ReferenceList {
        fn insert(&mut self, id: u8, value: u32, bytes: usize) {
            self.list.retain(|(other, ..)| *other != id);
            if self.most == 0 || self.bytes == 0 || bytes > self.bytes {
                return;
            }
            self.list.push((id, value, bytes));
            while self.list.len() > self.most || self.list.iter().map(|(.., bytes)| bytes).sum::<usize>() > self.bytes {
                self.list.remove(0);
            }
        }
    }

    proptest! {
        #[test]
        fn it_does_what_a_list_does(most in 0..6usize, bytes in 0..100usize, steps in prop::collection::vec(step(), 0..60)) {
            let archive = Archive::new(most, bytes);
            let mut model = ReferenceList { list: Vec::new(), most, bytes };
            for (number, step) in (0u32..).zip(steps) {
                let find = |model: &ReferenceList, id| model.list.iter().find(|(other, ..)| *other == id).map(|(_, value, _)| *value);
                match step {
                    ArchiveStep::Insert(id, bytes) => {
                        archive.clone().insert(id.to_string(), Arc::new(number), bytes);
                        model.insert(id, number, bytes);
                    }
                    ArchiveStep::Get(id) => prop_assert_eq!(archive.get(&id.to_string()).as_deref().copied(), find(&model, id)),
                    ArchiveStep::Remove(id) => {
                        let removed = archive.remove(&id.to_string());
                        prop_assert_eq!(removed.as_deref().copied(), find(&model, id));
                        model.list.retain(|(other, ..)| *other != id);
                    }
                    ArchiveStep::Youngest(most) => {
                        let found = archive.youngest(most, |value| value % 2 == 0);
                        let expected = model.list.iter().rev().map(|(_, value, _)| *value).filter(|value| value % 2 == 0);
                        prop_assert_eq!(found.iter().map(|value| **value).collect::<Vec<_>>(), expected.take(most).collect::<Vec<_>>());
                    }
                }
                let bytes = model.list.iter().map(|(.., bytes)| bytes).sum();
                prop_assert_eq!(archive.size(), StoreSize { count: model.list.len(), bytes });
                prop_assert_eq!(archive.lock().ages.len(), model.list.len());
            }
        }
    }

    #[test]
    fn what_makes_room_is_dropped_and_what_is_in_use_lives_on() {
        let archive = Archive::new(1, 10);
        let first = Arc::new("first");
        let second = Arc::new("second");
        archive.insert("a".into(), first.clone(), 10);
        let used = archive.get("a").unwrap();
        archive.insert("b".into(), second, 10);
        assert!(archive.get("a").is_none() && archive.get("b").is_some());
        assert_eq!((*used, Arc::strong_count(&first)), ("first", 2));
    }

    #[test]
    fn without_room_it_keeps_nothing() {
        for (most, bytes) in [(0, 10), (10, 0)] {
            let archive = Archive::new(most, bytes);
            archive.insert("a".into(), Arc::new(()), 0);
            assert!(!archive.is_enabled() && archive.get("a").is_none());
        }
    }
}
