//! Table of the loaded adapters.

use std::sync::Arc;

use waymark_models::AdapterSlot;

use super::counters::Counters;
use super::error::EngineError;
use super::request::LoadedAdapter;
use super::snapshot::{AdapterSnapshot, SessionSnapshot};

/// Adapters loaded in the backend, and the source of generation numbers for adapters and weights.
#[derive(Debug)]
pub(super) struct AdapterTable {
    /// Adapters open to new turns.
    open: Vec<LoadedAdapter>,
    /// Adapters that are unloaded when their last session closes.
    retired: Vec<LoadedAdapter>,
    /// Last generation given to an adapter or to weights. Adapters and weights share one series of numbers, so no
    /// two of them have the same prefix cache keys.
    last_generation: u64,
    counters: Arc<Counters>,
}

impl AdapterTable {
    /// Creates an empty table. `generation` is that of the initial weights.
    pub(super) fn new(generation: u64, counters: Arc<Counters>) -> Self {
        Self { open: Vec::new(), retired: Vec::new(), last_generation: generation, counters }
    }

    /// Returns a generation that was never used.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.last_generation += 1;
        self.last_generation
    }

    /// Returns the number of loaded adapters.
    pub(super) fn len(&self) -> usize {
        self.open.len() + self.retired.len()
    }

    /// Checks that a turn may use `adapter`.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] when the adapter is not open to new turns.
    pub(super) fn check(&self, adapter: Option<LoadedAdapter>) -> Result<(), EngineError> {
        match adapter {
            Some(adapter) if !self.open.contains(&adapter) => Err(EngineError::Adapter(format!(
                "adapter generation {} is not loaded: load it again",
                adapter.generation
            ))),
            _ => Ok(()),
        }
    }

    /// Opens the adapter in `slot` to turns, under a new generation.
    pub(super) fn open(&mut self, slot: AdapterSlot) -> LoadedAdapter {
        let adapter = LoadedAdapter { slot, generation: self.next_generation() };
        self.open.push(adapter);
        self.publish();
        adapter
    }

    /// Closes an adapter to new turns. Returns `false` if it is not open.
    pub(super) fn retire(&mut self, adapter: LoadedAdapter) -> bool {
        // An adapter may be retired more than once; only the first time has an effect.
        let at = self.open.iter().position(|other| *other == adapter);
        self.retired.extend(at.map(|at| self.open.swap_remove(at)));
        at.is_some()
    }

    /// Returns `true` while an adapter waits for its last session to close.
    pub(super) fn is_retiring(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Removes the retired adapters that no session uses, and calls `unload` for each of them.
    pub(super) fn remove_unused(&mut self, used: impl Fn(AdapterSlot) -> bool, mut unload: impl FnMut(AdapterSlot)) {
        self.retired.retain(|adapter| {
            // A slot is reused only after its unload, so it identifies the adapter here.
            let keep = used(adapter.slot);
            if !keep {
                unload(adapter.slot);
            }
            keep
        });
        self.publish();
    }

    fn publish(&self) {
        self.counters.adapters.set(self.len());
    }

    /// Returns the state of every adapter, given the state of every session.
    pub(super) fn snapshot(&self, sessions: &[SessionSnapshot]) -> Vec<AdapterSnapshot> {
        let state = |adapter: &LoadedAdapter, retired| AdapterSnapshot {
            adapter: *adapter,
            sessions: sessions.iter().filter(|session| session.adapter == Some(*adapter)).count(),
            retired,
        };
        let open = self.open.iter().map(|adapter| state(adapter, false));
        let retired = self.retired.iter().map(|adapter| state(adapter, true));
        open.chain(retired).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_adapter_stays_until_its_last_session_and_its_generation_never_returns() {
        let mut table = AdapterTable::new(7, Arc::new(Counters::default()));
        let first = table.open(AdapterSlot(0));
        assert_eq!((first.generation, table.check(Some(first)).is_ok()), (8, true));
        assert!(table.retire(first) && !table.retire(first));
        assert!(table.check(Some(first)).is_err() && table.is_retiring());
        let mut unloaded = Vec::new();
        table.remove_unused(|_| true, |slot| unloaded.push(slot));
        assert_eq!((table.len(), unloaded.len()), (1, 0));
        table.remove_unused(|_| false, |slot| unloaded.push(slot));
        assert_eq!((table.len(), unloaded.as_slice()), (0, [AdapterSlot(0)].as_slice()));
        let second = table.open(AdapterSlot(0));
        assert_eq!((second.generation, table.check(Some(first)).is_ok()), (9, false), "the slot was reused");
    }
}
