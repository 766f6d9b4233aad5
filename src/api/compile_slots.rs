//! Slots for compiling schemas, which API keys share fairly.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth::Caller;
use crate::keys::KeyOwner;

/// Slots for compiling schemas; clones share them. If the server has other keys, a key leaves one slot to them.
#[derive(Debug, Clone)]
pub(crate) struct CompileSlots {
    slots: Arc<Semaphore>,
    /// Number of slots that one of several keys may hold.
    most_per_key: usize,
    /// Turns of the keys that hold a slot or wait for one.
    turns: Arc<Mutex<HashMap<KeyOwner, Arc<Semaphore>>>>,
}

/// Slot for compiling a schema, given back when dropped.
#[derive(Debug)]
pub(super) struct CompileSlot {
    _slot: OwnedSemaphorePermit,
    _turn: Option<OwnedSemaphorePermit>,
}

impl CompileSlots {
    /// Creates `most` slots.
    pub(super) fn new(most: usize) -> Self {
        let most_per_key = most.saturating_sub(1).max(1);
        Self { slots: Arc::new(Semaphore::new(most)), most_per_key, turns: Arc::default() }
    }

    /// Waits for a slot. `None` if the slots are closed.
    pub(super) async fn take(&self, caller: &Caller) -> Option<CompileSlot> {
        // The turn comes first, so further requests of a key do not stand in the queue of all keys.
        let turn = match caller.owner.filter(|_| caller.shares) {
            Some(owner) => Some(self.turns_of(owner).acquire_owned().await.ok()?),
            None => None,
        };
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok()?;
        Some(CompileSlot { _slot: slot, _turn: turn })
    }

    fn turns_of(&self, owner: KeyOwner) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // Keys come and go, and their entries would pile up. One that is in use has another reference.
        turns.retain(|_, own| Arc::strong_count(own) > 1);
        Arc::clone(turns.entry(owner).or_insert_with(|| Arc::new(Semaphore::new(self.most_per_key))))
    }

    /// Makes all further slots unavailable.
    #[cfg(test)]
    pub(super) fn close(&self) {
        self.slots.close();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::FutureExt;

    use super::*;
    use crate::keys::Secret;

    /// Creates a caller with a key of its own, on a server with several keys.
    fn caller() -> Caller {
        Caller { owner: Some(Secret::generate().digest().owner()), shares: true, ..Caller::default() }
    }

    #[tokio::test]
    async fn a_busy_key_takes_all_slots_but_one() {
        let slots = CompileSlots::new(3);
        let take = |caller: &Caller| slots.take(caller).now_or_never().flatten();
        let greedy = caller();
        let _held = [take(&greedy).unwrap(), take(&greedy).unwrap()];
        assert!(take(&greedy).is_none(), "the last slot is for other keys");
        assert!(take(&caller()).is_some());
    }

    #[tokio::test]
    async fn a_key_leaves_a_slot_to_others() {
        let slots = CompileSlots::new(2);
        let greedy = caller();
        let other = caller();
        let first = slots.take(&greedy).await.unwrap();
        assert!(slots.take(&greedy).now_or_never().is_none(), "the second request of the key waits");
        assert!(slots.take(&other).now_or_never().flatten().is_some());
        drop(first);
        assert!(slots.take(&greedy).now_or_never().flatten().is_some());
        assert_eq!(slots.turns.lock().unwrap().len(), 1);
        let alone = Caller { shares: false, ..greedy };
        let both = [slots.take(&alone).await, slots.take(&alone).await];
        assert!(both.iter().all(Option::is_some));
    }
}
