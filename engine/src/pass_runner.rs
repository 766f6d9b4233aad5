//! Owner of the backend: runs forward passes and keeps the state that lives between two calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use waymark_models::kernel::Team;
use waymark_models::sampler::{Pick, SampleError, Sampled};
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, ForwardBatch, LogitPositions, Logits};

use super::backend::{Backend, BackendError, PassOutput, RecordedSteps};
use super::counters::Counters;
use super::masking::Masks;
use super::scheduler::{PlannedRow, ScheduledSession};
use super::worker::panic_message;

/// Owner of the backend. A panic in a pass, a copy, or a change of adapters or weights is an error of that call and does
/// not end the thread.
pub(super) struct PassRunner {
    backend: Box<dyn Backend>,
    batch: ForwardBatch,
    /// Tokens of the current row, with the proposed ones at the end.
    tokens: Vec<u32>,
    picks: Vec<Option<Pick>>,
    /// Time until which the rows of the batch wait for their masks.
    mask_deadline: Instant,
    output: PassOutput,
    /// Time at which the last pass ended. `None` once the next pass begins, an adapter is loaded, the weights are
    /// replaced, or the engine is idle.
    last_pass_end: Option<Instant>,
    /// Recorded steps of the backend that are already in the counters.
    recorded: RecordedSteps,
    lost: bool,
    counters: Arc<Counters>,
}

impl PassRunner {
    pub(super) fn new(backend: Box<dyn Backend>, counters: Arc<Counters>) -> Self {
        let mut runner = Self {
            backend,
            batch: ForwardBatch::new(),
            tokens: Vec::new(),
            picks: Vec::new(),
            mask_deadline: Instant::now(),
            output: PassOutput::default(),
            last_pass_end: None,
            recorded: RecordedSteps::default(),
            lost: false,
            counters,
        };
        runner.count_recorded_steps();
        runner
    }

    /// Returns `true` if the backend is asynchronous.
    pub(super) fn overlaps(&self) -> bool {
        self.backend.overlaps()
    }

    /// Returns threads that are idle between two passes and can sample.
    pub(super) fn team(&self) -> Option<&Team> {
        self.backend.team()
    }

    /// Begins an empty batch.
    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.picks.clear();
        self.mask_deadline = Masks::submit_deadline();
    }

    /// Adds the row of a session to the batch.
    pub(super) fn push(&mut self, session: &mut ScheduledSession, row: &PlannedRow) {
        let part = session.sequence().row(row.tokens, row.proposed);
        let want = match (row.samples, row.proposed) {
            (false, _) => LogitPositions::Nothing,
            (true, 0) => LogitPositions::Last,
            // Only rows with a single token of the sequence have proposed ones, so every position is sampled.
            (true, _) => LogitPositions::All,
        };
        self.tokens.clear();
        self.tokens.extend_from_slice(part.ids);
        self.tokens.extend_from_slice(session.proposal(row.proposed));
        self.batch.push(&self.tokens, part.start, part.table, session.adapter_slot(), want);
        if row.samples {
            // A synchronous backend draws no tokens, so its sessions need no pick.
            let draws = self.backend.overlaps();
            let vocab = self.backend.spec().vocab;
            let until = self.mask_deadline;
            let pick = |offset: usize| if draws { session.pick(offset, vocab, until) } else { None };
            self.picks.extend((0..=row.proposed).map(pick));
        }
    }

    /// Submits the batch.
    ///
    /// # Errors
    /// The reason why the pass could not begin.
    pub(super) fn submit(&mut self) -> Result<(), String> {
        self.counters.steps_total.add(1);
        self.launch()
    }

    fn launch(&mut self) -> Result<(), String> {
        let Self { backend, batch, picks, output, .. } = self;
        let started = Instant::now();
        let submitted = catch_panic(|| backend.submit(batch, picks, output));
        if let Some(last_pass_end) = self.last_pass_end.take() {
            // An asynchronous pass counts as begun once it is in the device queue, after `submit` returns.
            let gap = if self.backend.overlaps() { last_pass_end.elapsed() } else { started - last_pass_end };
            self.counters.gap_seconds.observe(gap.as_secs_f64());
        }
        submitted
    }

    /// Waits for the pass in flight.
    ///
    /// # Errors
    /// The reason why no result of the batch can be used.
    pub(super) fn collect(&mut self) -> Result<(), String> {
        let Self { backend, batch, output, .. } = self;
        let collected = catch_panic(|| backend.collect(output));
        self.last_pass_end = Some(Instant::now());
        collected?;
        let drawn = output.drawn.iter().flatten().count();
        // Without this check, a missing row would panic at an index far from its cause.
        if output.logits.rows() + drawn < batch.logit_rows() {
            return Err(format!(
                "the backend returned {} rows of logits instead of {}",
                output.logits.rows(),
                batch.logit_rows() - drawn
            ));
        }
        Ok(())
    }

    /// Takes the token that the backend drew for the sampling row at this position, if it drew one.
    pub(super) fn take_drawn(&mut self, position: usize) -> Option<Result<Sampled, SampleError>> {
        self.output.drawn.get_mut(position).and_then(Option::take)
    }

    /// Returns the logits of the sampling rows that the backend did not draw, in the order of the batch.
    pub(super) fn logits(&self) -> &Logits {
        &self.output.logits
    }

    /// Computes one harmless token in `block`, to tell a broken backend from bad requests.
    ///
    /// # Errors
    /// The reason why the backend cannot be used.
    pub(super) fn probe(&mut self, block: u32) -> Result<(), String> {
        // Not counted as a step: `steps_total` counts passes for sessions.
        self.clear();
        self.batch.push(&[0], 0, &[block], None, LogitPositions::Last);
        self.launch()?;
        self.collect()?;
        if self.output.logits.row(0).iter().any(|logit| logit.is_nan()) {
            return Err("the model returns NaN logits".into());
        }
        Ok(())
    }

    /// Copies the KV of a block to another one.
    ///
    /// # Errors
    /// The reason why nothing was copied.
    pub(super) fn copy_block(&mut self, from: u32, to: u32) -> Result<(), String> {
        let backend = &mut self.backend;
        catch_panic(|| backend.copy_block(from, to))
    }

    /// Loads an adapter. After a failure no batch names its slot, so a half-loaded adapter is never applied.
    ///
    /// # Errors
    /// The reason why the adapter could not be loaded.
    pub(super) fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, String> {
        self.end_series();
        let backend = &mut self.backend;
        let loaded = catch_panic(|| backend.load_adapter(dir));
        self.count_recorded_steps();
        self.publish();
        loaded
    }

    /// Unloads an adapter. After a failure no batch names its slot either.
    ///
    /// # Errors
    /// The panic of the backend.
    pub(super) fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<(), String> {
        let backend = &mut self.backend;
        let unloaded = catch_panic(|| {
            backend.unload_adapter(slot);
            Ok(())
        });
        self.publish();
        unloaded
    }

    /// Replaces all weights or, on an error, none, unless the backend is lost then.
    ///
    /// # Errors
    /// The reason why the weights could not be replaced.
    pub(super) fn replace_weights(&mut self, weights: &Weights) -> Result<(), String> {
        self.end_series();
        let backend = &mut self.backend;
        catch_panic(|| backend.replace_weights(weights))
    }

    /// Ends a series of passes, so the time until the next one is not measured as a gap between two steps.
    pub(super) fn end_series(&mut self) {
        self.last_pass_end = None;
    }

    /// Returns the reason why no later pass can succeed, once that is certain.
    pub(super) fn lost(&mut self) -> Option<String> {
        let reason = self.backend.lost();
        // Remembered until the end of the thread, where the backend must not be dropped.
        self.lost |= reason.is_some();
        reason
    }

    /// Adds the steps that the backend has recorded since the last call to the counters.
    pub(super) fn count_recorded_steps(&mut self) {
        let before = self.recorded;
        let now = self.backend.recorded_steps();
        self.recorded = now;
        self.counters.graph_recordings_total.add(now.recorded.saturating_sub(before.recorded));
        self.counters.graph_refusals_total.add(now.refused.saturating_sub(before.refused));
    }

    /// Publishes the memory use of the backend. Must not be called while a pass is in flight.
    pub(super) fn publish(&self) {
        let footprint = self.backend.footprint();
        self.counters.kv_bytes.set(footprint.kv);
        self.counters.adapter_bytes.set(footprint.adapters);
    }

    /// Shuts down at the end of the engine thread. Leaks a lost backend, since freeing the memory of a lost device may
    /// block forever.
    pub(super) fn shut_down(self) {
        if self.lost {
            std::mem::forget(self.backend);
        }
    }
}

/// Calls the backend and catches panics. The backend may be left in any state: by contract it writes everything again
/// in the next pass.
fn catch_panic<T>(call: impl FnOnce() -> Result<T, BackendError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Err(panic) => Err(format!("panic: {}", panic_message(panic.as_ref()))),
        Ok(result) => result.map_err(|error| error.to_string()),
    }
}
