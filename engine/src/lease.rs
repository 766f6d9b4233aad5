//! Adapters that stay loaded while they are in use.

use std::path::PathBuf;
use std::sync::Arc;

use super::error::EngineError;
use super::handle::Engine;
use super::request::LoadedAdapter;

/// A loaded adapter that is unloaded when the last clone is dropped. A session that holds a lease keeps its adapter
/// even after the policy got another one.
#[derive(Debug, Clone)]
pub struct Lease(Arc<AdapterGuard>);

#[derive(Debug)]
struct AdapterGuard {
    adapter: LoadedAdapter,
    engine: Engine,
}

impl Drop for AdapterGuard {
    fn drop(&mut self) {
        self.engine.unload_adapter(self.adapter);
    }
}

impl Lease {
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
        Ok(Lease(Arc::new(AdapterGuard { adapter, engine: self.clone() })))
    }
}
