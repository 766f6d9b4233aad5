//! Adapters that one engine has loaded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// Adapters of an engine, by name. Each has a lock of its own, so that requests for an adapter do not wait while another
/// one is loaded or unloaded.
#[derive(Debug, Default)]
pub(super) struct EngineAdapters(Mutex<HashMap<String, Arc<tokio::sync::Mutex<bool>>>>);

impl EngineAdapters {
    /// Locks an adapter. The guarded value is `true` if the adapter is loaded.
    pub(super) async fn lock(&self, name: &str) -> OwnedMutexGuard<bool> {
        let adapter = Arc::clone(self.all().entry(name.to_owned()).or_default());
        adapter.lock_owned().await
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

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<tokio::sync::Mutex<bool>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
