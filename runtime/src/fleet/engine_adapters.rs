//! Adapters that one engine has loaded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::OwnedMutexGuard;

use super::fault::Fault;

/// Adapters of an engine, by name. Each has a lock of its own, so that requests for an adapter do not wait while another
/// one is loaded or unloaded.
#[derive(Debug, Default)]
pub(super) struct EngineAdapters(Mutex<HashMap<String, Arc<tokio::sync::Mutex<AdapterState>>>>);

/// State of an adapter at an engine.
#[derive(Debug, Default)]
pub(super) struct AdapterState {
    /// If `true`, the adapter is loaded.
    pub(super) loaded: bool,
    /// Failure of the last load, and the time of the failure. `None` if the load succeeded.
    pub(super) failed: Option<(Instant, Fault)>,
}

impl EngineAdapters {
    /// Locks an adapter.
    pub(super) async fn lock(&self, name: &str) -> OwnedMutexGuard<AdapterState> {
        let adapter = Arc::clone(self.all().entry(name.to_owned()).or_default());
        adapter.lock_owned().await
    }

    /// Returns `true` if an adapter is being loaded or unloaded, so that its next request would wait.
    pub(super) fn is_busy(&self, name: &str) -> bool {
        self.all().get(name).is_some_and(|adapter| adapter.try_lock().is_err())
    }

    /// Forgets that an adapter is loaded, because the engine does not have it, as after a restart, or because its weights
    /// could not be compared. It is loaded again before its next request.
    pub(super) fn forget(&self, name: &str) {
        self.all().remove(name);
    }

    /// Forgets all adapters.
    pub(super) fn clear(&self) {
        self.all().clear();
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<tokio::sync::Mutex<AdapterState>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
