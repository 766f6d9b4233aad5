//! Things kept for a while by their id: bounded in number and in bytes; the oldest go first.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::metrics::Held;

/// Things kept for a while by their id; clones share them. Reading something does not make it younger.
pub(crate) struct Archive<T> {
    shelves: Arc<Mutex<Shelves<T>>>,
    most: usize,
    bytes: usize,
}

struct Shelves<T> {
    kept: HashMap<Arc<str>, Kept<T>>,
    /// Ids by age: the first is the oldest.
    ages: BTreeMap<u64, Arc<str>>,
    /// What all that is kept takes together.
    bytes: usize,
    clock: u64,
}

struct Kept<T> {
    value: Arc<T>,
    bytes: usize,
    age: u64,
}

impl<T> Archive<T> {
    /// Room for `most` things that take `bytes` bytes together; with 0 of either it keeps nothing.
    pub(crate) fn new(most: usize, bytes: usize) -> Self {
        let shelves = Shelves { kept: HashMap::new(), ages: BTreeMap::new(), bytes: 0, clock: 0 };
        Self { shelves: Arc::new(Mutex::new(shelves)), most, bytes }
    }

    /// Whether it keeps anything at all.
    pub(crate) fn keeps(&self) -> bool {
        self.most > 0 && self.bytes > 0
    }

    /// Keeps `value`, which takes `bytes` bytes, in the place of what had this id. The oldest others make room. One that
    /// is larger than the whole is not kept.
    pub(crate) fn insert(&self, id: String, value: Arc<T>, bytes: usize) {
        let mut gone = Vec::new();
        let mut shelves = self.lock();
        gone.extend(shelves.remove(&id));
        if self.keeps() && bytes <= self.bytes {
            while shelves.kept.len() >= self.most || shelves.bytes > self.bytes - bytes {
                let Some(value) = shelves.remove_oldest() else { break };
                gone.push(value);
            }
            shelves.put(id, value, bytes);
        }
        // What goes is dropped without the lock: it may be large.
        drop(shelves);
    }

    /// What is kept under `id`.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<T>> {
        self.lock().kept.get(id).map(|kept| kept.value.clone())
    }

    /// Stops keeping what has this id, and gives it back.
    pub(crate) fn remove(&self, id: &str) -> Option<Arc<T>> {
        self.lock().remove(id)
    }

    /// The youngest first, `most` of those that `wanted` holds for.
    pub(crate) fn youngest(&self, most: usize, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let shelves = self.lock();
        let values = shelves.ages.values().rev().filter_map(|id| shelves.kept.get(id)).map(|kept| &kept.value);
        values.filter(|value| wanted(value)).take(most).cloned().collect()
    }

    /// How much is kept.
    pub(crate) fn held(&self) -> Held {
        let shelves = self.lock();
        Held { count: shelves.kept.len(), bytes: shelves.bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Shelves<T>> {
        // Nothing in here can panic halfway through a change.
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Shelves<T> {
    fn put(&mut self, id: String, value: Arc<T>, bytes: usize) {
        let (id, age): (Arc<str>, _) = (id.into(), self.clock);
        self.clock += 1;
        self.bytes += bytes;
        self.ages.insert(age, id.clone());
        self.kept.insert(id, Kept { value, bytes, age });
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
        Self { shelves: self.shelves.clone(), most: self.most, bytes: self.bytes }
    }
}

impl<T> fmt::Debug for Archive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shelves = self.lock();
        f.debug_struct("Archive").field("kept", &shelves.kept.len()).field("bytes", &shelves.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u8, usize),
        Get(u8),
        Remove(u8),
        Youngest(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..8u8, 0..40usize).prop_map(|(id, bytes)| Step::Insert(id, bytes)),
            1 => (0..8u8).prop_map(Step::Get),
            1 => (0..8u8).prop_map(Step::Remove),
            1 => (0..10usize).prop_map(Step::Youngest),
        ]
    }

    /// The same in the plainest way: a list, oldest first.
    struct Model {
        list: Vec<(u8, u32, usize)>,
        most: usize,
        bytes: usize,
    }

    impl Model {
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
            let mut model = Model { list: Vec::new(), most, bytes };
            for (number, step) in (0u32..).zip(steps) {
                let find = |model: &Model, id| model.list.iter().find(|(other, ..)| *other == id).map(|(_, value, _)| *value);
                match step {
                    Step::Insert(id, bytes) => {
                        archive.clone().insert(id.to_string(), Arc::new(number), bytes);
                        model.insert(id, number, bytes);
                    }
                    Step::Get(id) => prop_assert_eq!(archive.get(&id.to_string()).as_deref().copied(), find(&model, id)),
                    Step::Remove(id) => {
                        let removed = archive.remove(&id.to_string());
                        prop_assert_eq!(removed.as_deref().copied(), find(&model, id));
                        model.list.retain(|(other, ..)| *other != id);
                    }
                    Step::Youngest(most) => {
                        let found = archive.youngest(most, |value| value % 2 == 0);
                        let expected = model.list.iter().rev().map(|(_, value, _)| *value).filter(|value| value % 2 == 0);
                        prop_assert_eq!(found.iter().map(|value| **value).collect::<Vec<_>>(), expected.take(most).collect::<Vec<_>>());
                    }
                }
                let bytes = model.list.iter().map(|(.., bytes)| bytes).sum();
                prop_assert_eq!(archive.held(), Held { count: model.list.len(), bytes });
                prop_assert_eq!(archive.lock().ages.len(), model.list.len());
            }
        }
    }

    #[test]
    fn what_makes_room_is_dropped_and_what_is_in_use_lives_on() {
        let archive = Archive::new(1, 10);
        let (first, second) = (Arc::new("first"), Arc::new("second"));
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
            assert!(!archive.keeps() && archive.get("a").is_none());
        }
    }
}
