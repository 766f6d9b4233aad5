//! The interface between scheduling and computation.

use std::path::Path;

use waymark_models::kernel::Team;
use waymark_models::sampler::{Pick, SampleError, Sampled};
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, ForwardBatch, Logits};

/// Properties of a backend that the engine needs. They stay the same while the engine runs, even after its weights are
/// replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSpec {
    /// Name of the model, for display.
    pub name: String,
    /// Number of logits per row. Token ids at or above this number are refused.
    pub vocab: usize,
    /// Number of KV blocks in the pool, each of [`waymark_models::BLOCK`] tokens.
    pub blocks: usize,
    /// Context length of the model, in tokens.
    pub context: usize,
    /// Identifies the initial weights. Part of every prefix cache key until the weights are replaced.
    pub generation: u64,
}

impl BackendSpec {
    /// Returns the longest sequence that can be held, in tokens: the context length, or the whole KV pool if that is
    /// smaller.
    pub fn limit(&self) -> usize {
        self.context.min(self.blocks * waymark_models::BLOCK)
    }
}

/// Counts of the decode steps that a backend has recorded for replay since the start, for example as CUDA graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordedSteps {
    /// Number of recorded steps, one per batch size.
    pub recorded: usize,
    /// Number of batch sizes that could not be recorded.
    pub refused: usize,
}

/// Host memory, in bytes, that a backend has allocated while running. GPU memory is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Footprint {
    /// KV blocks that have been written since the start. The system allocates the memory of a block at its first write
    /// and does not get it back.
    pub kv: usize,
    /// Loaded adapters.
    pub adapters: usize,
}

/// Error of a forward pass, of loading an adapter or of replacing the weights.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);

impl From<waymark_models::ModelError> for BackendError {
    fn from(error: waymark_models::ModelError) -> Self {
        Self(error.to_string())
    }
}

/// Result of a forward pass. The next pass reuses its memory.
#[derive(Debug, Default)]
pub struct PassOutput {
    /// Logits of every requested row whose token the backend did not draw, in the order of the batch.
    pub logits: Logits,
    /// For each requested row of logits, the token that the backend drew. `None`, or a missing entry, leaves the choice
    /// to the caller.
    pub drawn: Vec<Option<Result<Sampled, SampleError>>>,
}

/// Computes logits over a paged KV cache that it owns. Lives on the engine thread.
///
/// The engine may repeat a pass that failed or panicked, with fewer rows: `forward` must not rely on the KV of the
/// batch's new positions, and must write all of it again.
///
/// A pass has two halves, so the caller can prepare the next pass while a device computes this one:
/// [`submit`](Self::submit) and [`collect`](Self::collect). A backend that computes on the caller's own thread does
/// everything in `submit`.
pub trait Backend: Send {
    /// Returns the properties of the backend. Every call returns the same value.
    fn spec(&self) -> &BackendSpec;

    /// Writes the KV of the batch's new tokens and the logits that its rows want, shape (`batch.logit_rows()`, vocab),
    /// in the order of the rows.
    ///
    /// # Errors
    /// [`BackendError`] when no result of the batch can be used.
    fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError>;

    /// Loads an adapter; rows of later batches may name its slot.
    ///
    /// # Errors
    /// [`BackendError`] when the directory holds no adapter that fits the model.
    fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, BackendError>;

    /// Unloads an adapter. No later batch names its slot, even after a panic, which the engine catches.
    fn unload_adapter(&mut self, slot: AdapterSlot);

    /// Copies the KV of block `from` to block `to`. Called between two passes, before the pass that reads the copy.
    ///
    /// # Errors
    /// [`BackendError`] when nothing was copied.
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError>;

    /// Replaces the weights by others of the same shape: all of them or, on an error or a panic, none. The caller
    /// guarantees that no KV written before is read again, and that no adapter is loaded.
    ///
    /// # Errors
    /// [`BackendError`] when the weights do not fit, and from a backend that does not support replacing them.
    fn replace_weights(&mut self, weights: &Weights) -> Result<(), BackendError> {
        let _ = weights;
        Err(BackendError(format!(
            "{}: this backend cannot replace its weights while it runs: use the CPU backend",
            self.spec().name
        )))
    }

    /// Returns `true` if the backend computes asynchronously and draws tokens itself where it gets a [`Pick`]; see
    /// [`submit`](Self::submit).
    fn overlaps(&self) -> bool {
        false
    }

    /// Begins a pass. `picks` has an entry for each row of logits that the batch wants; where the entry is `Some`, the
    /// backend may draw the token itself or return the row's logits. At most one pass is in flight, and the engine calls
    /// no other method before it has collected the pass.
    ///
    /// # Errors
    /// [`BackendError`] when the pass could not begin; then it must not be collected.
    fn submit(
        &mut self,
        batch: &ForwardBatch,
        picks: &[Option<Pick>],
        output: &mut PassOutput,
    ) -> Result<(), BackendError> {
        // A synchronous backend draws no tokens: with no entries in `drawn`, the engine samples every row.
        debug_assert!(picks.len() <= batch.logit_rows(), "a pick for a row that gives no logits");
        output.drawn.clear();
        self.forward(batch, &mut output.logits)
    }

    /// Waits for the pass in flight and writes its result.
    ///
    /// # Errors
    /// [`BackendError`] when no result of the batch can be used.
    fn collect(&mut self, output: &mut PassOutput) -> Result<(), BackendError> {
        let _ = output;
        Ok(())
    }

    /// Returns the host memory that the backend has allocated. Called after every step.
    fn footprint(&self) -> Footprint {
        Footprint::default()
    }

    /// Returns the counts of recorded and refused decode steps.
    fn recorded_steps(&self) -> RecordedSteps {
        RecordedSteps::default()
    }

    /// Returns the reason why no later pass can succeed, once that is certain, for example because the device is gone.
    /// The engine then leaks the backend instead of dropping it, since freeing the memory of a lost device may block
    /// forever.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Returns threads that are idle between two passes and can sample. With `None`, the default, the engine thread
    /// samples.
    fn team(&self) -> Option<&Team> {
        None
    }
}
