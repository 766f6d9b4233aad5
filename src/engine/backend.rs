//! The seam between scheduling and arithmetic.

use std::path::Path;

use waymark_models::cuda::graphs::GraphUse;
use waymark_models::kernel::Team;
use waymark_models::sampler::{Pick, SampleError, Sampled};
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, ForwardBatch, Logits};

/// What the engine must know of a backend. Does not change while the engine runs, whatever weights it takes meanwhile.
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
    /// Identifies the weights it began with: part of every prefix cache key until others take their place.
    pub generation: u64,
}

impl BackendSpec {
    /// The longest sequence that can be held, in tokens: the context, or the whole KV pool where that is smaller.
    pub fn limit(&self) -> usize {
        self.context.min(self.blocks * waymark_models::BLOCK)
    }
}

/// Memory of this machine, in bytes, that a backend has taken for what comes and goes. A card's is not among it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Footprint {
    /// The KV blocks that have held anything since the start: the system gives a block its memory when it is first written,
    /// and does not get it back.
    pub kv: usize,
    /// The adapters that are loaded.
    pub adapters: usize,
}

/// Why a forward pass, an adapter or other weights failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);

impl From<waymark_models::ModelError> for BackendError {
    fn from(error: waymark_models::ModelError) -> Self {
        Self(error.to_string())
    }
}

/// What a pass gives. Its memory is used again by the next one.
#[derive(Debug, Default)]
pub struct Output {
    /// One row for each that was asked for and not drawn, in the batch's order.
    pub logits: Logits,
    /// For each row of logits that the batch asks for, the token the backend drew from it; `None`, or nothing at all, where
    /// it left that to the caller.
    pub drawn: Vec<Option<Result<Sampled, SampleError>>>,
}

/// Computes logits over paged KV that it owns. Lives on the engine's thread.
///
/// A pass that fails or panics may be repeated with fewer rows: `forward` must not rely on anything in the KV of the
/// batch's new positions, and must write all of it again.
///
/// A pass has two halves, so that the caller can prepare the next one while a device works on this: [`submit`](Self::submit)
/// and [`collect`](Self::collect). Who computes on the caller's own processor does everything in the first.
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

    /// Computes with other weights of the same shape from now on: with all of them or, if it fails or panics, with all of
    /// those before. No KV is read again that was written before, and no adapter is loaded.
    ///
    /// # Errors
    /// [`BackendError`] when they do not fit, and of a backend that takes none.
    fn replace_weights(&mut self, weights: &Weights) -> Result<(), BackendError> {
        let _ = weights;
        Err(BackendError(format!("{} takes no other weights while it runs: the processor does", self.spec().name)))
    }

    /// True when it works beside its caller, and draws tokens where it is told how: see [`submit`](Self::submit).
    fn overlaps(&self) -> bool {
        false
    }

    /// Begins a pass. `picks` has an entry for each row of logits the batch asks for: where there is one, the backend may
    /// draw the token itself. At most one pass is under way, and nothing else is asked of the backend before it is
    /// collected.
    ///
    /// # Errors
    /// [`BackendError`] when the pass could not begin; it is not to be collected then.
    fn submit(
        &mut self,
        batch: &ForwardBatch,
        picks: &[Option<Pick>],
        output: &mut Output,
    ) -> Result<(), BackendError> {
        debug_assert!(picks.len() <= batch.logit_rows(), "a pick for a row that gives no logits");
        output.drawn.clear();
        self.forward(batch, &mut output.logits)
    }

    /// Waits for the pass that was begun, and gives what became of it.
    ///
    /// # Errors
    /// [`BackendError`] when nothing of the batch can be used.
    fn collect(&mut self, output: &mut Output) -> Result<(), BackendError> {
        let _ = output;
        Ok(())
    }

    /// What it has taken of this machine's memory. Asked after every step.
    fn footprint(&self) -> Footprint {
        Footprint::default()
    }

    /// What became of recording steps, where they are recorded to be replayed.
    fn graphs(&self) -> GraphUse {
        GraphUse::default()
    }

    /// Why no pass can succeed any more, once that is certain: a device that is gone does not come back. It is not dropped
    /// then, since whoever gives back what a device holds may wait for it without end.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Threads that rest between two passes, for sampling. By default none: the engine's own thread samples.
    fn team(&self) -> Option<&Team> {
        None
    }
}
