//! An adapter for as long as somebody needs it.

use std::path::PathBuf;
use std::sync::Arc;

use super::error::EngineError;
use super::handle::Engine;
use super::request::Adapter;

/// A loaded adapter that is unloaded when the last clone is dropped: whoever runs with it keeps it, whatever has taken
/// its place meanwhile.
#[derive(Debug, Clone)]
pub struct Lease(Arc<Held>);

#[derive(Debug)]
struct Held {
    adapter: Adapter,
    engine: Engine,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.engine.unload_adapter(self.adapter);
    }
}

impl Lease {
    /// The adapter.
    pub fn adapter(&self) -> Adapter {
        self.0.adapter
    }
}

impl Engine {
    /// Loads a PEFT adapter between two steps, for as long as the lease or a clone of it is held.
    ///
    /// # Errors
    /// As [`load_adapter`](Self::load_adapter).
    pub async fn lease_adapter(&self, dir: PathBuf) -> Result<Lease, EngineError> {
        let adapter = self.load_adapter(dir).await?;
        Ok(Lease(Arc::new(Held { adapter, engine: self.clone() })))
    }
}
