//! Adapters that stay loaded while they are in use.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::error::EngineError;
use super::handle::Engine;
use super::request::LoadedAdapter;

/// A loaded adapter that is unloaded when the last clone is dropped. A session that holds a lease keeps its adapter
/// even after the policy got another one.
#[derive(Debug, Clone)]
pub struct Lease(Arc<AdapterGuard>);

struct AdapterGuard {
    adapter: LoadedAdapter,
    /// Unloads the adapter. `None` once it was called.
    unload: Option<Box<dyn FnOnce(LoadedAdapter) + Send + Sync>>,
}

impl fmt::Debug for AdapterGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterGuard").field("adapter", &self.adapter).finish_non_exhaustive()
    }
}

impl Drop for AdapterGuard {
    fn drop(&mut self) {
        if let Some(unload) = self.unload.take() {
            unload(self.adapter);
        }
    }
}

impl Lease {
    /// Creates a lease of a loaded adapter. `unload` is called when the lease and all its clones are dropped.
    pub fn new(adapter: LoadedAdapter, unload: impl FnOnce(LoadedAdapter) + Send + Sync + 'static) -> Lease {
        Lease(Arc::new(AdapterGuard { adapter, unload: Some(Box::new(unload)) }))
    }

    /// Returns the adapter.
    pub fn adapter(&self) -> LoadedAdapter {
        self.0.adapter
    }
}

impl Engine {
    /// Loads a PEFT adapter between two steps. The adapter stays loaded until the lease and all its clones are dropped.
    ///
    /// # Errors
    /// Same as [`load_adapter`](Self::load_adapter).
    pub async fn lease_adapter(&self, dir: PathBuf) -> Result<Lease, EngineError> {
        let adapter = self.load_adapter(dir).await?;
        let engine = self.clone();
        Ok(Lease::new(adapter, move |adapter| engine.unload_adapter(adapter)))
    }
}
