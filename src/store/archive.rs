//! Bounded in-memory store of values by ID, shared fairly by the API keys. When it is full, the oldest values of the
//! key that takes the most room are evicted, so no key can push out the values of another one that takes less.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::StoreSize;
use super::record::Owner;

/// Bounded store of values by ID; clones share it. Reading a value does not make it younger.
pub(crate) struct Archive<T> {
    state: Arc<Mutex<ArchiveState<T>>>,
    most: usize,
    bytes: usize,
}

struct ArchiveState<T> {
    kept: HashMap<Arc<str>, ArchiveEntry<T>>,
    /// Values of each owner that has any.
    shares: HashMap<Owner, ArchiveShare>,
    /// Total size of all values.
    bytes: usize,
    clock: u64,
}

struct ArchiveEntry<T> {
    value: Arc<T>,
    owner: Owner,
    bytes: usize,
    age: u64,
}

/// Values of one owner.
#[derive(Default)]
struct ArchiveShare {
    /// IDs by insertion order: the first is the oldest.
    ages: BTreeMap<u64, Arc<str>>,
    bytes: usize,
}

impl<T> Archive<T> {
    /// Creates a store of at most `most` values and `bytes` bytes. With either limit 0 it stores nothing.
    pub(crate) fn new(most: usize, bytes: usize) -> Self {
        let state = ArchiveState { kept: HashMap::new(), shares: HashMap::new(), bytes: 0, clock: 0 };
        Self { state: Arc::new(Mutex::new(state)), most, bytes }
    }

    /// Returns `true` if the store can hold anything.
    pub(crate) fn is_enabled(&self) -> bool {
        self.most > 0 && self.bytes > 0
    }

    /// Stores `value` of `owner`, which takes `bytes` bytes, and replaces the value with the same ID. Evicts the oldest
    /// values of the owner with the most values, or with the most bytes, until the store is within its limits. A value
    /// larger than the whole store is dropped, and so is one larger than what the other owners leave to its own.
    pub(crate) fn insert(&self, id: String, owner: Owner, value: Arc<T>, bytes: usize) {
        let mut state = self.lock();
        let gone = self.place(&mut state, id, owner, value, bytes);
        // Evicted values are dropped after the lock is released, because dropping a large value takes time.
        drop(state);
        drop(gone);
    }

    /// Stores a value as [`Archive::insert`] does. Returns `false`, and changes nothing, if the value would not stay.
    pub(crate) fn replace(&self, id: &str, owner: Owner, value: &Arc<T>, bytes: usize) -> bool {
        let mut state = self.lock();
        let gone = self.place(&mut state, id.to_owned(), owner, Arc::clone(value), bytes);
        let stays = state.kept.contains_key(id);
        if stays {
            drop(state);
            return true;
        }
        // Undone: what was replaced and evicted returns, and only the new value is dropped.
        for (id, entry) in gone {
            if !Arc::ptr_eq(&entry.value, value) {
                state.put(id, entry);
            }
        }
        false
    }

    /// Stores a value, and returns what was replaced and evicted.
    fn place(
        &self,
        state: &mut ArchiveState<T>,
        id: String,
        owner: Owner,
        value: Arc<T>,
        bytes: usize,
    ) -> Vec<(Arc<str>, ArchiveEntry<T>)> {
        let mut gone = Vec::from_iter(state.remove(&id));
        if self.is_enabled() && bytes <= self.bytes {
            // A counter instead of the time, which may repeat or jump back.
            let age = state.clock;
            state.clock += 1;
            // Added first, so the new value counts as its owner's when the largest owner is found.
            state.put(id.into(), ArchiveEntry { value, owner, bytes, age });
            while let Some(value) = state.excess(self.most, self.bytes) {
                gone.push(value);
            }
        }
        gone
    }

    /// Returns the value stored under `id`.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<T>> {
        self.lock().kept.get(id).map(|kept| kept.value.clone())
    }

    /// Removes the value stored under `id` and returns it.
    pub(crate) fn remove(&self, id: &str) -> Option<Arc<T>> {
        self.lock().remove(id).map(|(_, entry)| entry.value)
    }

    /// Returns the `most` youngest values of `owner`, youngest first.
    pub(crate) fn youngest(&self, owner: Owner, most: usize) -> Vec<Arc<T>> {
        let state = self.lock();
        let ids = state.shares.get(&owner).into_iter().flat_map(|share| share.ages.values().rev());
        ids.filter_map(|id| state.kept.get(id)).take(most).map(|kept| kept.value.clone()).collect()
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
    fn put(&mut self, id: Arc<str>, entry: ArchiveEntry<T>) {
        self.bytes += entry.bytes;
        let share = self.shares.entry(entry.owner).or_default();
        share.bytes += entry.bytes;
        share.ages.insert(entry.age, id.clone());
        self.kept.insert(id, entry);
    }

    fn remove(&mut self, id: &str) -> Option<(Arc<str>, ArchiveEntry<T>)> {
        let (id, kept) = self.kept.remove_entry(id)?;
        self.bytes -= kept.bytes;
        if let Some(share) = self.shares.get_mut(&kept.owner) {
            share.ages.remove(&kept.age);
            share.bytes -= kept.bytes;
            if share.ages.is_empty() {
                self.shares.remove(&kept.owner);
            }
        }
        Some((id, kept))
    }

    /// Removes a value if the store exceeds `most` values or `bytes` bytes: the oldest of the largest owner.
    fn excess(&mut self, most: usize, bytes: usize) -> Option<(Arc<str>, ArchiveEntry<T>)> {
        let crowded = self.kept.len() > most;
        if !crowded && self.bytes <= bytes {
            return None;
        }
        let size = |share: &ArchiveShare| if crowded { share.ages.len() } else { share.bytes };
        let oldest = |share: &ArchiveShare| share.ages.first_key_value().map(|(age, id)| (*age, id.clone()));
        let shares = self.shares.values().filter_map(|share| Some((size(share), oldest(share)?)));
        // Of two equally large owners, the one with the older value loses it.
        let (_, (_, id)) = shares.max_by(|one, other| one.0.cmp(&other.0).then(other.1.0.cmp(&one.1.0)))?;
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
    use crate::keys::Secret;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum ArchiveStep {
        Insert(u8, usize, usize),
        Replace(u8, usize, usize),
        Get(u8),
        Remove(u8),
        Youngest(usize, usize),
    }

    fn step() -> impl Strategy<Value = ArchiveStep> {
        prop_oneof![
            4 => (0..8u8, 0..3usize, 0..40usize).prop_map(|(id, owner, bytes)| ArchiveStep::Insert(id, owner, bytes)),
            2 => (0..8u8, 0..3usize, 0..99usize).prop_map(|(id, owner, bytes)| ArchiveStep::Replace(id, owner, bytes)),
            1 => (0..8u8).prop_map(ArchiveStep::Get),
            1 => (0..8u8).prop_map(ArchiveStep::Remove),
            1 => (0..3usize, 0..10usize).prop_map(|(owner, most)| ArchiveStep::Youngest(owner, most)),
        ]
    }

    fn owners() -> [Owner; 3] {
        let owner = || Some(Secret::generate().digest().owner());
        [None, owner(), owner()]
    }

    /// Reference model: a list of ID, owner, value and size, oldest first.
    #[derive(Clone)]
    struct ReferenceList {
        list: Vec<(u8, usize, u32, usize)>,
        most: usize,
        bytes: usize,
    }

    impl ReferenceList {
        fn insert(&mut self, id: u8, owner: usize, value: u32, bytes: usize) {
            self.list.retain(|(other, ..)| *other != id);
            if self.most == 0 || self.bytes == 0 || bytes > self.bytes {
                return;
            }
            self.list.push((id, owner, value, bytes));
            let size = |list: &[(u8, usize, u32, usize)], owner, count: bool| -> usize {
                let own = list.iter().filter(|(_, other, ..)| *other == owner);
                own.map(|(.., bytes)| if count { 1 } else { *bytes }).sum()
            };
            loop {
                let crowded = self.list.len() > self.most;
                if !crowded && self.list.iter().map(|(.., bytes)| bytes).sum::<usize>() <= self.bytes {
                    return;
                }
                // The first of the largest: the oldest value among those of the largest owners.
                let largest = (0..3).map(|owner| size(&self.list, owner, crowded)).max().unwrap();
                let first = self.list.iter().position(|(_, owner, ..)| size(&self.list, *owner, crowded) == largest);
                self.list.remove(first.unwrap());
            }
        }
    }

    proptest! {
        #[test]
        fn it_does_what_a_list_does(most in 0..6usize, bytes in 0..100usize, steps in prop::collection::vec(step(), 0..60)) {
            let owners = owners();
            let archive = Archive::new(most, bytes);
            let mut model = ReferenceList { list: Vec::new(), most, bytes };
            for (number, step) in (0u32..).zip(steps) {
                let find = |model: &ReferenceList, id| model.list.iter().find(|(other, ..)| *other == id).map(|(_, _, value, _)| *value);
                match step {
                    ArchiveStep::Insert(id, owner, bytes) => {
                        archive.clone().insert(id.to_string(), owners[owner], Arc::new(number), bytes);
                        model.insert(id, owner, number, bytes);
                    }
                    ArchiveStep::Replace(id, owner, bytes) => {
                        let replaced = archive.replace(&id.to_string(), owners[owner], &Arc::new(number), bytes);
                        let mut tried = model.clone();
                        tried.insert(id, owner, number, bytes);
                        prop_assert_eq!(replaced, find(&tried, id) == Some(number));
                        if replaced {
                            model = tried;
                        }
                    }
                    ArchiveStep::Get(id) => prop_assert_eq!(archive.get(&id.to_string()).as_deref().copied(), find(&model, id)),
                    ArchiveStep::Remove(id) => {
                        let removed = archive.remove(&id.to_string());
                        prop_assert_eq!(removed.as_deref().copied(), find(&model, id));
                        model.list.retain(|(other, ..)| *other != id);
                    }
                    ArchiveStep::Youngest(owner, most) => {
                        let found = archive.youngest(owners[owner], most);
                        let own = model.list.iter().rev().filter(|(_, other, ..)| *other == owner);
                        let expected = own.map(|(_, _, value, _)| *value).take(most);
                        prop_assert_eq!(found.iter().map(|value| **value).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
                    }
                }
                let bytes = model.list.iter().map(|(.., bytes)| bytes).sum();
                prop_assert_eq!(archive.size(), StoreSize { count: model.list.len(), bytes });
                let state = archive.lock();
                prop_assert_eq!(state.shares.values().map(|share| share.ages.len()).sum::<usize>(), model.list.len());
                prop_assert!(state.shares.values().all(|share| !share.ages.is_empty()));
            }
        }
    }

    #[test]
    fn a_flood_of_one_owner_leaves_the_others_alone() {
        let [_, flood, other] = owners();
        let archive = Archive::new(1000, 64 << 10);
        for number in 0..10 {
            archive.insert(format!("other{number}"), other, Arc::new(()), 100);
        }
        for number in 0..5_000 {
            archive.insert(format!("flood{number}"), flood, Arc::new(()), 10);
            archive.insert(format!("large{number}"), flood, Arc::new(()), 60 << 10);
        }
        assert_eq!(archive.youngest(other, 100).len(), 10);
    }

    #[test]
    fn what_makes_room_is_dropped_and_what_is_in_use_lives_on() {
        let archive = Archive::new(1, 10);
        let first = Arc::new("first");
        let second = Arc::new("second");
        archive.insert("a".into(), None, first.clone(), 10);
        let used = archive.get("a").unwrap();
        archive.insert("b".into(), None, second, 10);
        assert!(archive.get("a").is_none() && archive.get("b").is_some());
        assert_eq!((*used, Arc::strong_count(&first)), ("first", 2));
    }

    #[test]
    fn without_room_it_keeps_nothing() {
        for (most, bytes) in [(0, 10), (10, 0)] {
            let archive = Archive::new(most, bytes);
            archive.insert("a".into(), None, Arc::new(()), 0);
            assert!(!archive.is_enabled() && archive.get("a").is_none());
        }
    }
}
