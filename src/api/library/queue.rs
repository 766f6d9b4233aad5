//! Queue of the changes that wait for the running commit.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::Span;
use waymark_index::{Changes, PreparedVectors};

use super::{AcceptedChange, ChangeProgress};
use crate::api::fair_slots::FairSlot;

/// Size of the changes that are committed together, in documents and triples. A larger change is prepared before its
/// turn.
pub(super) const SLICE: usize = 512;

/// Time after which a change goes first, whatever its size.
const PATIENCE: Duration = Duration::from_secs(30);

/// Queued change.
#[derive(Debug)]
pub(super) struct QueuedChange {
    number: u64,
    pub(super) changes: Changes,
    /// If `true`, the texts of the change are still being embedded.
    preparing: bool,
    pub(super) prepared: Option<Arc<PreparedVectors>>,
    pub(super) accepted: Option<AcceptedChange>,
    pub(super) started: Instant,
    /// Span of the request that made the change.
    pub(super) span: Span,
    pub(super) progress: watch::Sender<ChangeProgress>,
    pub(super) slot: Option<FairSlot>,
}

/// Changes in the order of arrival; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct ChangeQueue(Arc<Mutex<WaitingChanges>>);

#[derive(Debug, Default)]
struct WaitingChanges {
    next_number: u64,
    changes: Vec<QueuedChange>,
}

impl ChangeQueue {
    /// Queues a change and returns its number.
    pub(super) fn push(
        &self,
        changes: Changes,
        preparing: bool,
        accepted: Option<AcceptedChange>,
        progress: watch::Sender<ChangeProgress>,
        slot: Option<FairSlot>,
    ) -> u64 {
        let started = Instant::now();
        let span = Span::current();
        let mut waiting = self.lock();
        let number = waiting.next_number;
        waiting.next_number += 1;
        let prepared = None;
        waiting.changes.push(QueuedChange {
            number,
            changes,
            preparing,
            prepared,
            accepted,
            started,
            span,
            progress,
            slot,
        });
        number
    }

    /// Marks a change as prepared.
    pub(super) fn prepared(&self, number: u64, prepared: Option<PreparedVectors>) {
        if let Some(change) = self.lock().changes.iter_mut().find(|change| change.number == number) {
            change.preparing = false;
            change.prepared = prepared.map(Arc::new);
        }
    }

    /// Puts a change back at its place.
    pub(super) fn put_back(&self, change: QueuedChange) {
        change.progress.send_replace(ChangeProgress::Queued);
        let mut waiting = self.lock();
        let place = waiting.changes.partition_point(|other| other.number < change.number);
        waiting.changes.insert(place, change);
    }

    /// Removes and returns the changes whose clients wait for them, except those still being prepared.
    pub(super) fn take_unaccepted(&self) -> Vec<QueuedChange> {
        let mut waiting = self.lock();
        let is_kept = |change: &QueuedChange| change.accepted.is_some() || change.preparing;
        let (kept, taken) = std::mem::take(&mut waiting.changes).into_iter().partition(is_kept);
        waiting.changes = kept;
        taken
    }

    /// Removes and returns all changes.
    pub(super) fn take_all(&self) -> Vec<QueuedChange> {
        std::mem::take(&mut self.lock().changes)
    }

    /// Returns `true` if no change is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().changes.is_empty()
    }

    /// Removes a change from the queue.
    pub(super) fn remove(&self, number: u64) -> Option<QueuedChange> {
        let mut waiting = self.lock();
        let place = waiting.changes.iter().position(|change| change.number == number)?;
        Some(waiting.changes.remove(place))
    }

    fn lock(&self) -> MutexGuard<'_, WaitingChanges> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the changes to commit next, among those that share no document with an earlier one: first
    /// those that have waited too long, then the smallest, up to the size of a slice. A change that removes documents
    /// without naming them is committed alone.
    pub(super) fn next(&self) -> Vec<QueuedChange> {
        let mut waiting = self.lock();
        let ready =
            apart(waiting.changes.iter().map(|waiting| &waiting.changes)).into_iter().zip(&waiting.changes).enumerate();
        let ready = ready.filter(|(_, (apart, change))| *apart && !change.preparing);
        let mut ready: Vec<(bool, usize, usize)> = ready
            .map(|(place, (_, change))| (change.started.elapsed() < PATIENCE, size(&change.changes), place))
            .collect();
        // `false` comes first: changes that have waited for long, then small ones.
        ready.sort_unstable();
        let mut total = 0;
        let mut taken = HashSet::new();
        for (_, size, place) in ready {
            let goes_alone = waiting.changes.get(place).is_some_and(|change| !change.changes.chunked.is_empty());
            if goes_alone && !taken.is_empty() {
                continue;
            }
            total += size;
            // A change larger than a slice is committed alone.
            if total > SLICE && !taken.is_empty() {
                break;
            }
            taken.insert(place);
            if goes_alone {
                break;
            }
        }
        let mut place = 0..;
        let (next, later) = std::mem::take(&mut waiting.changes)
            .into_iter()
            .partition(|_| place.next().is_some_and(|place| taken.contains(&place)));
        waiting.changes = later;
        next
    }
}

/// Returns for each change whether it shares no document with any change before it. A change of a chunked text may remove
/// any chunk of the text, and the document with the text's name.
fn apart<'c>(waiting: impl Iterator<Item = &'c Changes>) -> Vec<bool> {
    let mut named = HashSet::new();
    let mut texts_of_named = HashSet::new();
    let mut chunked = HashSet::new();
    let apart = waiting.map(|changes| {
        let shares_name = names(changes).any(|name| named.contains(name) || chunked.contains(text_of(name)));
        let apart = !shares_name && !texts(changes).any(|text| texts_of_named.contains(text));
        // Includes changes that must wait, so the changes of one document keep their order.
        named.extend(names(changes));
        texts_of_named.extend(names(changes).map(text_of));
        chunked.extend(texts(changes));
        apart
    });
    apart.collect()
}

/// Iterates over the names of the chunked texts of a change.
fn texts(changes: &Changes) -> impl Iterator<Item = &str> {
    changes.chunked.iter().map(|(name, _)| name.as_str())
}

/// Iterates over the IDs in a change, and the names of its chunked texts, which may be IDs too.
fn names(changes: &Changes) -> impl Iterator<Item = &str> {
    changes.ids().chain(texts(changes))
}

/// Returns the name of the text that a document with this ID is a chunk of, or else the ID itself.
fn text_of(id: &str) -> &str {
    match id.rsplit_once('#') {
        Some((text, number)) if number.parse::<u64>().is_ok() => text,
        _ => id,
    }
}

/// Size of a change: its number of documents and triples.
pub(super) fn size(changes: &Changes) -> usize {
    let triples = changes.upsert.iter().map(|document| 1 + document.triples.as_ref().map_or(0, Vec::len));
    triples.sum::<usize>() + changes.delete.len()
}

#[cfg(test)]
mod tests {
    use waymark_index::Document;

    use super::*;

    fn change(id: &str) -> Changes {
        let text = "a text".to_owned();
        Changes::upsert([Document { id: id.to_owned(), title: String::new(), text, triples: None, metadata: None }])
    }

    #[test]
    fn changes_of_one_document_keep_their_order() {
        let waiting = [change("a"), change("b"), change("a"), change("c")];
        assert_eq!(apart(waiting.iter()), [true, true, false, true]);
    }

    /// Replaces the text `id` by one chunk.
    fn chunked(id: &str) -> Changes {
        Changes { chunked: vec![(id.to_owned(), 1)], ..change(&format!("{id}#1")) }
    }

    #[test]
    fn a_change_of_a_chunked_text_holds_up_only_those_of_its_documents() {
        assert_eq!(apart([chunked("b"), change("a"), change("b#2"), change("b")].iter()), [true, true, false, false]);
        assert_eq!(apart([change("a"), chunked("b"), change("b#2"), chunked("c")].iter()), [true, true, false, true]);
        assert_eq!(apart([change("b#7"), chunked("b"), chunked("b")].iter()), [true, false, false]);
        assert_eq!(apart([chunked("b"), change("b#x"), change("a#b#1")].iter()), [true, true, true]);
        assert_eq!(apart([chunked("b#2"), chunked("b")].iter()), [true, false]);
        assert_eq!(apart([chunked("b"), chunked("b#2")].iter()), [true, false]);
    }

    #[test]
    fn a_change_of_a_chunked_text_is_committed_alone() {
        let queue = ChangeQueue::default();
        let add = |changes: Changes, preparing: bool| {
            let (progress, _) = watch::channel(ChangeProgress::Queued);
            queue.push(changes, preparing, None, progress, None)
        };
        let next = || queue.next().iter().map(|change| change.number).collect::<Vec<_>>();
        // A change that is still prepared holds up only those of its documents.
        let first = add(chunked("a"), true);
        let later = add(change("a"), false);
        let others = [add(change("b"), false), add(chunked("c"), false), add(change("d"), false)];
        let taken: Vec<Vec<u64>> = std::iter::repeat_with(next).take_while(|taken| !taken.is_empty()).collect();
        assert_eq!(taken, [vec![others[0], others[2]], vec![others[1]]]);
        queue.prepared(first, None);
        assert_eq!((next(), next()), (vec![first], vec![later]));
    }
}
