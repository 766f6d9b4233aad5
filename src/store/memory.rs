//! Store in memory, for servers without state.

use std::sync::{Arc, Mutex, PoisonError};

use super::archive::Archive;
use super::record::{Record, RecordKey, RecordKind, RecordOrder, RecordRange};
use super::{Store, StoreError, StoreFuture, StoreSize};

/// Approximate size of a record without its texts, in bytes.
const RECORD_BYTES: usize = size_of::<Record>() + 128;

/// Maximum number and total size of the records of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Maximum number of records.
    pub count: usize,
    /// Maximum total size, in bytes.
    pub bytes: usize,
}

/// Bounded store in memory: when it is full, the oldest records of the tenant that takes the most room are evicted.
#[derive(Debug)]
pub struct MemoryStore {
    responses: Archive<Family>,
    conversations: Archive<Family>,
    /// Records of all other kinds.
    others: Archive<Family>,
    /// Held by changes of existing records, so none is lost to another one.
    turn: Mutex<()>,
}

/// Record with its children, oldest first.
#[derive(Debug)]
struct Family {
    record: Record,
    children: Vec<Arc<Record>>,
}

impl Family {
    fn bytes(&self) -> usize {
        bytes(&self.record) + self.children.iter().map(|child| bytes(child)).sum::<usize>()
    }
}

fn bytes(record: &Record) -> usize {
    RECORD_BYTES + record.key.id.len() + record.key.parent.len() + record.body.len()
}

impl MemoryStore {
    /// Creates a store with the limit `responses` for stored responses.
    pub fn new(responses: MemoryLimits) -> Self {
        Self {
            responses: Archive::new(responses.count, responses.bytes),
            conversations: Archive::new(1000, 64 << 20),
            others: Archive::new(1000, 1 << 20),
            turn: Mutex::default(),
        }
    }

    fn archive(&self, kind: RecordKind) -> &Archive<Family> {
        match kind {
            RecordKind::Response => &self.responses,
            RecordKind::Conversation | RecordKind::ConversationItem => &self.conversations,
            RecordKind::Trace
            | RecordKind::TraceContent
            | RecordKind::Policy
            | RecordKind::Key
            | RecordKind::Secret => &self.others,
        }
    }

    /// Returns a record without a parent, with its children.
    fn family(&self, key: &RecordKey) -> Option<Arc<Family>> {
        // The archive knows IDs alone, and a record of another tenant or kind must not be found.
        self.archive(key.kind).get(&key.id).filter(|family| family.record.key == *key)
    }

    fn write(&self, family: Family) {
        let key = family.record.key.clone();
        let bytes = family.bytes();
        self.archive(key.kind).insert(key.id, key.owner, Arc::new(family), bytes);
    }

    /// Replaces a record and its children. Returns `false` if there is no such record.
    ///
    /// # Errors
    /// If the new ones are larger than the tenant's room. The record is then unchanged.
    fn changed(&self, key: &RecordKey, change: impl FnOnce(&Family) -> Family) -> Result<bool, StoreError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(family) = self.family(key) else { return Ok(false) };
        let family = change(&family);
        let bytes = family.bytes();
        match self.archive(key.kind).replace(&key.id, key.owner, &Arc::new(family), bytes) {
            true => Ok(true),
            false => Err(StoreError::Full { kind: key.kind, id: key.id.clone() }),
        }
    }

    fn inserted(&self, record: Record) -> bool {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = self.family(&record.key).is_none();
        if is_new {
            self.write(Family { record, children: Vec::new() });
        }
        is_new
    }

    fn found(&self, key: &RecordKey) -> Option<Record> {
        let Some(parent) = key.of_parent() else { return self.family(key).map(|family| family.record.clone()) };
        let family = self.family(&parent)?;
        family.children.iter().find(|child| child.key == *key).map(|child| Record::clone(child))
    }

    fn removed(&self, key: &RecordKey) -> Result<bool, StoreError> {
        let Some(parent) = key.of_parent() else {
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            // Removed under the lock, because a concurrent change that has read the record would write it again.
            return Ok(self.family(key).is_some_and(|_| self.archive(key.kind).remove(&key.id).is_some()));
        };
        let mut found = false;
        self.changed(&parent, |family| {
            let others = family.children.iter().filter(|child| child.key != *key);
            let children: Vec<_> = others.cloned().collect();
            found = children.len() < family.children.len();
            Family { record: family.record.clone(), children }
        })?;
        Ok(found)
    }

    fn listed(&self, range: &RecordRange) -> Vec<Record> {
        let records: Vec<Record> = match range.kind.parent() {
            Some(parent) => {
                let family = self.family(&RecordKey::new(parent, range.owner, range.parent.clone()));
                let children = family.iter().flat_map(|family| &family.children);
                children.map(|child| Record::clone(child)).collect()
            }
            None => {
                let youngest = self.archive(range.kind).youngest(range.owner, usize::MAX);
                // One archive holds records of several kinds.
                let of_kind = youngest.iter().filter(|family| family.record.key.kind == range.kind);
                of_kind.map(|family| family.record.clone()).collect()
            }
        };
        in_range(records, range)
    }
}

/// Sorts records by position, and returns those in `range`.
fn in_range(mut records: Vec<Record>, range: &RecordRange) -> Vec<Record> {
    records.sort_by_key(|record| record.position);
    if range.order == RecordOrder::Descending {
        records.reverse();
    }
    let after = |record: &Record| match (range.order, range.after) {
        (_, None) => true,
        (RecordOrder::Ascending, Some(after)) => record.position > after,
        (RecordOrder::Descending, Some(after)) => record.position < after,
    };
    records.into_iter().filter(after).take(range.limit).collect()
}

/// Wraps the result of an operation in memory, which is complete at once.
fn ended<T: Send + 'static>(result: Result<T, StoreError>) -> StoreFuture<'static, T> {
    Box::pin(std::future::ready(result))
}

fn done<T: Send + 'static>(value: T) -> StoreFuture<'static, T> {
    ended(Ok(value))
}

impl Store for MemoryStore {
    fn put(&self, record: Record, children: Vec<Record>) -> StoreFuture<'_, ()> {
        self.write(Family { record, children: children.into_iter().map(Arc::new).collect() });
        done(())
    }

    fn insert(&self, record: Record) -> StoreFuture<'_, bool> {
        done(self.inserted(record))
    }

    fn update<'a>(&'a self, key: &'a RecordKey, body: Vec<u8>) -> StoreFuture<'a, bool> {
        ended(self.changed(key, |family| {
            let Record { key, position, .. } = family.record.clone();
            Family { record: Record { key, position, body }, children: family.children.clone() }
        }))
    }

    fn append<'a>(&'a self, parent: &'a RecordKey, children: Vec<Record>) -> StoreFuture<'a, bool> {
        ended(self.changed(parent, |family| {
            let mut last = family.children.iter().map(|child| child.position).max().unwrap_or(0);
            let added = children.into_iter().map(|child| Arc::new(child.placed_after(&mut last)));
            let children = family.children.iter().cloned().chain(added).collect();
            Family { record: family.record.clone(), children }
        }))
    }

    fn get<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, Option<Record>> {
        done(self.found(key))
    }

    fn list<'a>(&'a self, range: &'a RecordRange) -> StoreFuture<'a, Vec<Record>> {
        done(self.listed(range))
    }

    fn remove<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, bool> {
        ended(self.removed(key))
    }

    fn size(&self, kind: RecordKind) -> StoreSize {
        match kind {
            // Traces stay with the server, which can then replay them.
            RecordKind::Trace => StoreSize::default(),
            kind => self.archive(kind).size(),
        }
    }

    fn name(&self) -> &'static str {
        "memory"
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn is_shared(&self) -> bool {
        false
    }
}
