//! The seam between scheduling and arithmetic.

use std::path::Path;

use waymark_models::kernel::Team;
use waymark_models::{AdapterSlot, ForwardBatch, Logits};

/// What the engine must know of a backend. Does not change while the engine runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSpec {
    /// The model's name, for people.
    pub name: String,
    /// Logits per row; ids at or above it are refused.
    pub vocab: usize,
    /// KV blocks of [`waymark_models::BLOCK`] tokens it holds.
    pub blocks: usize,
    /// The longest sequence the model can see, in tokens.
    pub context: usize,
    /// Identifies the loaded weights: part of every prefix cache key.
    pub generation: u64,
}

impl BackendSpec {
    /// The longest sequence that can be held, in tokens: the context, or the whole KV pool where that is smaller.
    pub fn limit(&self) -> usize {
        self.context.min(self.blocks * waymark_models::BLOCK)
    }
}

/// Why a forward pass or an adapter failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);

impl From<waymark_models::ModelError> for BackendError {
    fn from(error: waymark_models::ModelError) -> Self {
        Self(error.to_string())
    }
}

/// Computes logits over paged KV that it owns. Lives on the engine's thread.
///
/// A pass that fails or panics may be repeated with fewer rows: `forward` must not rely on anything in the KV of the
/// batch's new positions, and must write all of it again.
pub trait Backend: Send {
    /// What it is. The same answer at every call.
    fn spec(&self) -> &BackendSpec;

    /// Writes the KV of the batch's new tokens and the logits its rows want, shape (`batch.logit_rows()`, vocab), in
    /// the order of the rows.
    ///
    /// # Errors
    /// [`BackendError`] when nothing of the batch can be used.
    fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError>;

    /// Loads an adapter; rows of later batches may name its slot.
    ///
    /// # Errors
    /// [`BackendError`] when the directory holds none that fits the model.
    fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, BackendError>;

    /// Forgets an adapter. No later batch names it.
    fn unload_adapter(&mut self, slot: AdapterSlot);

    /// Threads that rest between two passes, for sampling. By default none: the engine's own thread samples.
    fn team(&self) -> Option<&Team> {
        None
    }
}
