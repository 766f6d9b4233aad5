//! Bounded number of places that API keys share fairly.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::auth::Caller;
use super::error::ApiError;
use crate::keys::KeyOwner;

/// Places for one kind of work; clones share them.
#[derive(Debug, Clone)]
pub(super) struct FairSlots {
    taken: Arc<Mutex<HashMap<Option<KeyOwner>, usize>>>,
    most: usize,
    /// Plural noun for the work, for error messages.
    what: &'static str,
}

/// Place of one piece of work, given back when dropped.
#[derive(Debug)]
pub(super) struct FairSlot {
    slots: FairSlots,
    owner: Option<KeyOwner>,
}

impl FairSlots {
    /// Creates `most` places for `what`.
    pub(super) fn new(most: usize, what: &'static str) -> Self {
        Self { taken: Arc::default(), most, what }
    }

    /// Takes a place for `caller`.
    ///
    /// # Errors
    /// 429 if the caller has its maximum or its share of the places, 503 if all are taken.
    pub(super) fn take(&self, caller: &Caller) -> Result<FairSlot, ApiError> {
        // One lock for both checks and the taking, so that concurrent callers cannot take the same place.
        let mut taken = self.lock();
        let own = taken.get(&caller.owner).copied().unwrap_or(0);
        caller.may_have_another(own, self.what)?;
        caller.may_take(own, taken.values().sum(), self.most, self.what)?;
        *taken.entry(caller.owner).or_default() += 1;
        Ok(FairSlot { slots: self.clone(), owner: caller.owner })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<KeyOwner>, usize>> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FairSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        if let Some(own) = taken.get_mut(&self.owner) {
            *own -= 1;
            // Owners come and go, and their entries would pile up.
            if *own == 0 {
                taken.remove(&self.owner);
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
}
