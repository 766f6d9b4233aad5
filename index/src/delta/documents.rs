//! Documents changed since the base snapshot.

use std::sync::Arc;

use super::layered::Layered;
use super::paged::PagedMap;
use super::record::RecordDocument;
use super::shared_list::SharedList;
use crate::condition::{AllowedPassages, admits};
use crate::dense::GrowingCodes;
use crate::error::IndexError;
use crate::scored::Scored;
use crate::store::PassageStore;

/// Documents added, replaced and removed since the base snapshot.
///
/// A passage keeps its number until the next merge: a replaced document stays in its place, a removed one leaves a gap,
/// and new documents follow the last number. The order of the documents, by which ties are broken, is therefore that of
/// an index built from scratch.
#[derive(Debug, Clone)]
pub(crate) struct DocumentDelta {
    /// Number of passages in the base snapshot.
    base: u32,
    /// First number that was never used.
    bound: u32,
    live: u32,
    /// Newest document of every changed number. `None` if it was removed.
    changed: PagedMap<Option<ChangedDocument>>,
    /// Numbers of the base snapshot that have changed. `None` if there are none.
    replaced: Option<Arc<AllowedPassages>>,
    /// Codes of the vectors of all documents that were ever added, by slot.
    codes: GrowingCodes,
    /// Number of the document of each slot.
    slots: SharedList<u32>,
    /// Number of every ID that was added or removed. `None` if it was removed.
    ids: Layered<Arc<str>, Option<u32>>,
    /// Numbers in use. `None` if no document was removed.
    alive: Option<Arc<AllowedPassages>>,
}

/// Document that a commit added or put in place of another.
#[derive(Debug, Clone)]
struct ChangedDocument {
    document: Arc<RecordDocument>,
    /// Slot of the codes of its vector. `u32::MAX` if the vector is still to be computed.
    slot: u32,
}

/// Numbers that a record changes.
#[derive(Debug, Default)]
pub(crate) struct TouchedNumbers {
    /// Numbers whose earlier document was removed or replaced.
    pub(crate) left: Vec<u32>,
    /// Numbers of added and replacing documents, in the order of the record.
    pub(crate) came: Vec<u32>,
}

impl DocumentDelta {
    /// Creates a delta without changes over a base snapshot of this number of passages.
    pub(crate) fn new(base: u32) -> DocumentDelta {
        DocumentDelta {
            base,
            bound: base,
            live: base,
            changed: PagedMap::default(),
            replaced: None,
            codes: GrowingCodes::default(),
            slots: SharedList::default(),
            ids: Layered::default(),
            alive: None,
        }
    }

    /// Returns `true` if nothing has changed since the base snapshot.
    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// Number of passages in the base snapshot.
    pub(crate) fn base(&self) -> u32 {
        self.base
    }

    /// First number that no passage ever had.
    pub(crate) fn bound(&self) -> u32 {
        self.bound
    }

    /// Number of documents.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Numbers in use. `None` if all numbers below [`DocumentDelta::bound`] are.
    pub(crate) fn alive(&self) -> Option<&Arc<AllowedPassages>> {
        self.alive.as_ref()
    }

    /// Returns the changed document with this number: `None` if it is that of the base snapshot, `Some(None)` if it was
    /// removed.
    pub(crate) fn get(&self, number: u32) -> Option<Option<&Arc<RecordDocument>>> {
        if number < self.base && !self.replaces(number) {
            return None;
        }
        self.changed.get(number).map(|changed| changed.as_ref().map(|changed| &changed.document))
    }

    /// Returns `true` if a passage of the base snapshot was replaced or removed.
    pub(crate) fn replaces(&self, number: u32) -> bool {
        self.replaced.as_ref().is_some_and(|replaced| replaced.contains(number))
    }

    /// Returns `true` if any passage of the base snapshot was replaced or removed.
    pub(crate) fn replaces_any(&self) -> bool {
        self.replaced.is_some()
    }

    /// Returns the `k` allowed changed documents nearest to `query`, ties by number.
    pub(crate) fn nearest(&self, query: &[f32], k: usize, allowed: Option<&AllowedPassages>) -> Vec<Scored> {
        let number = |slot: u32| self.slots.get(slot as usize).copied().unwrap_or(u32::MAX);
        let current = |slot: u32| self.changed.get(number(slot))?.as_ref().filter(|changed| changed.slot == slot);
        let gone = |slot| current(slot).is_none() || !admits(allowed, number(slot));
        let row = |slot| Some(current(slot)?.document.vector.as_slice());
        let tie = |a, b| number(a).cmp(&number(b));
        let found = self.codes.extremes(query, k, &gone, &row, &tie);
        let best = found.into_iter().flat_map(|found| found.best);
        best.map(|scored| Scored { number: number(scored.number), ..scored }).collect()
    }

    /// Returns the changed number of an ID: `None` if the base snapshot decides, `Some(None)` if it was removed.
    pub(crate) fn find(&self, id: &str) -> Option<Option<u32>> {
        self.ids.get(id).copied()
    }

    /// Iterates over the changed documents that are in the index, by number.
    pub(crate) fn documents(&self) -> impl Iterator<Item = (u32, &Arc<RecordDocument>)> {
        self.changed.iter().filter_map(|(number, changed)| Some((number, &changed.as_ref()?.document)))
    }

    /// Iterates over all changed numbers, removed ones included, in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.changed.iter().map(|(number, _)| number)
    }

    /// Iterates over the numbers in use, in order.
    pub(crate) fn live_numbers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.bound).filter(|&number| self.alive.as_ref().is_none_or(|alive| alive.contains(number)))
    }

    /// Applies removals and then additions. Returns the new state and the touched numbers. Fails if the numbers are
    /// exhausted.
    pub(crate) fn applied(
        &self,
        store: &PassageStore,
        deleted: &[String],
        upserted: &[Arc<RecordDocument>],
    ) -> Result<(DocumentDelta, TouchedNumbers), IndexError> {
        let mut next = self.clone();
        let mut touched = TouchedNumbers::default();
        for id in deleted {
            if let Some(number) = next.number(store, id)? {
                next.remove(number, id);
                touched.left.push(number);
            }
        }
        for document in upserted {
            let number = match next.number(store, &document.id)? {
                Some(number) => {
                    touched.left.push(number);
                    number
                }
                None => next.append(&document.id)?,
            };
            next.insert(number, document);
            touched.came.push(number);
        }
        next.ids.settle();
        Ok((next, touched))
    }

    fn number(&self, store: &PassageStore, id: &str) -> Result<Option<u32>, IndexError> {
        self.find(id).map_or_else(|| store.find(id), Ok)
    }

    fn append(&mut self, id: &str) -> Result<u32, IndexError> {
        let number = self.bound;
        // The largest number marks removed nodes of the vector graph.
        if number == u32::MAX - 1 {
            return Err(IndexError::TooLarge { limit: u64::from(number) });
        }
        self.ids.insert(id.into(), Some(number));
        self.bound += 1;
        self.live += 1;
        if let Some(alive) = &mut self.alive {
            let alive = Arc::make_mut(alive);
            alive.reach(self.bound as usize);
            alive.insert(number);
        }
        Ok(number)
    }

    fn remove(&mut self, number: u32, id: &str) {
        let alive = self.alive.get_or_insert_with(|| Arc::new(AllowedPassages::all(self.bound as usize)));
        Arc::make_mut(alive).remove(number);
        self.ids.insert(id.into(), None);
        self.replace(number);
        self.changed.insert(number, None);
        self.live -= 1;
    }

    fn insert(&mut self, number: u32, document: &Arc<RecordDocument>) {
        self.replace(number);
        // A document whose vector is still to be computed is not searched.
        let slot = if document.vector.is_empty() { u32::MAX } else { self.codes.push(&document.vector) };
        if slot != u32::MAX {
            self.slots.push(number);
        }
        self.changed.insert(number, Some(ChangedDocument { document: Arc::clone(document), slot }));
    }

    /// Marks a number of the base snapshot as changed.
    fn replace(&mut self, number: u32) {
        if number < self.base {
            let none = || Arc::new(AllowedPassages::none(self.base as usize));
            Arc::make_mut(self.replaced.get_or_insert_with(none)).insert(number);
        }
    }
}
