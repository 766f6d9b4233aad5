//! Bounded number of places that API keys share fairly.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::auth::Caller;
use super::error::ApiError;
use crate::keys::KeyOwner;

/// Places for one kind of work; clones share them.
#[derive(Debug, Clone)]
pub(super) struct FairSlots {
    held: Arc<Mutex<HashMap<Option<KeyOwner>, Holding>>>,
    most: usize,
    /// Plural noun for the work, for error messages.
    what: &'static str,
}

/// Work of one caller and the places that it takes.
#[derive(Debug, Clone, Copy, Default)]
struct Holding {
    works: usize,
    places: usize,
}

/// Places of one piece of work, given back when dropped.
#[derive(Debug)]
pub(super) struct FairSlot {
    slots: FairSlots,
    owner: Option<KeyOwner>,
    places: usize,
}

impl FairSlots {
    /// Creates `most` places for `what`.
    pub(super) fn new(most: usize, what: &'static str) -> Self {
        Self { held: Arc::default(), most, what }
    }

    /// Takes a place for `caller`.
    ///
    /// # Errors
    /// 429 if the caller has its maximum or its share of the places, 503 if all are taken.
    pub(super) fn take(&self, caller: &Caller) -> Result<FairSlot, ApiError> {
        self.take_together(caller, 1, self.what)
    }

    /// Takes several places for one piece of work of `caller`, which counts once against the maximum of its key. `work`
    /// is the plural noun for such pieces, for error messages.
    ///
    /// # Errors
    /// 429 if the caller has its maximum or its share of the places, 503 if all are taken.
    pub(super) fn take_together(&self, caller: &Caller, places: usize, work: &str) -> Result<FairSlot, ApiError> {
        // One lock for all checks and the taking, so concurrent callers cannot take the same place.
        let mut held = self.lock();
        let own = held.get(&caller.owner).copied().unwrap_or_default();
        caller.may_have_another(own.works, work)?;
        let used: usize = held.values().map(|holding| holding.places).sum();
        for more in 0..places {
            caller.may_take(own.places + more, used + more, self.most, self.what)?;
        }
        let holding = held.entry(caller.owner).or_default();
        holding.works += 1;
        holding.places += places;
        Ok(FairSlot { slots: self.clone(), owner: caller.owner, places })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<KeyOwner>, Holding>> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FairSlot {
    fn drop(&mut self) {
        let mut held = self.slots.lock();
        if let Some(own) = held.get_mut(&self.owner) {
            own.works -= 1;
            own.places -= self.places;
            // Owners come and go, and their entries would pile up.
            if own.works == 0 {
                held.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::api::error::Code;
    use crate::keys::Secret;

    #[test]
    fn places_are_counted_until_they_are_given_back() {
        let slots = FairSlots::new(4, "changes");
        let caller = |concurrent| Caller {
            owner: Some(Secret::generate().digest().owner()),
            shares: true,
            concurrent,
            ..Caller::default()
        };
        let greedy = caller(None);
        let other = caller(Some(1));
        let held = [slots.take(&greedy).unwrap(), slots.take(&greedy).unwrap()];
        assert_eq!(slots.take(&greedy).unwrap_err().code, Code::ConcurrencyLimited);
        let _own = slots.take(&other).unwrap();
        assert!(slots.take(&other).unwrap_err().message.contains("may have 1 changes at once"));
        drop(held);
        assert!(slots.take(&greedy).is_ok());
        assert_eq!(slots.lock().len(), 1);
    }

    #[test]
    fn places_that_are_taken_together_count_once_against_the_maximum_of_a_key() {
        let slots = FairSlots::new(8, "files");
        let caller =
            Caller { owner: Some(Secret::generate().digest().owner()), concurrent: Some(2), ..Caller::default() };
        let batch = slots.take_together(&caller, 5, "batches").unwrap();
        assert_eq!(slots.take_together(&caller, 4, "batches").unwrap_err().code, Code::QueueFull);
        let rest = slots.take_together(&caller, 3, "batches").unwrap();
        assert!(slots.take_together(&caller, 1, "batches").unwrap_err().message.contains("may have 2 batches at once"));
        drop(batch);
        let _again = slots.take_together(&caller, 5, "batches").unwrap();
        drop(rest);
        assert_eq!(slots.lock().len(), 1);
    }
}
