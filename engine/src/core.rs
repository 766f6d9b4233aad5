//! The synchronous core of the engine: the execution of commands between two steps. The core runs on its caller's
//! thread, so tests can drive it operation by operation. Only token masks are computed on other threads.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use waymark_models::AdapterSlot;
use waymark_models::tokenizer::TokenBytes;
use waymark_models::weights::Weights;

use super::adapter_table::AdapterTable;
use super::backend::Backend;
use super::command::{EngineCommand, Submission};
use super::config::EngineConfig;
use super::counters::Counters;
use super::delivery::Delivery;
use super::error::EngineError;
use super::health::StopFlag;
use super::masking::{Masking, Masks};
use super::pass_runner::PassRunner;
use super::request::LoadedAdapter;
use super::scheduler::Scheduler;
use super::snapshot::EngineSnapshot;
use super::step_loop::StepLoop;

/// State owned by the engine thread.
pub(super) struct Core {
    steps: StepLoop,
    adapters: AdapterTable,
    masks: Masks,
    stop_flag: Arc<StopFlag>,
    counters: Arc<Counters>,
}

impl Core {
    pub(super) fn new(
        backend: Box<dyn Backend>,
        config: &EngineConfig,
        bytes: Arc<TokenBytes>,
        counters: Arc<Counters>,
        stop_flag: Arc<StopFlag>,
    ) -> Self {
        let spec = backend.spec();
        let adapters = AdapterTable::new(spec.generation, counters.clone());
        let scheduler = Scheduler::new(spec, config, counters.clone());
        let delivery = Delivery::new(bytes, spec.limit(), counters.clone());
        let passes = PassRunner::new(backend, counters.clone());
        let max_failures = config.max_failures;
        let steps = StepLoop::new(scheduler, passes, delivery, max_failures, stop_flag.clone(), counters.clone());
        Self { steps, adapters, masks: Masks::default(), stop_flag, counters }
    }

    /// Returns `true` if a session is running or waiting.
    pub(super) fn is_busy(&self) -> bool {
        self.steps.scheduler.is_busy()
    }

    /// Returns `true` if the backend is asynchronous.
    pub(super) fn overlaps(&self) -> bool {
        self.steps.passes.overlaps()
    }

    /// Returns the step loop, which the caller runs between commands.
    pub(super) fn steps(&mut self) -> &mut StepLoop {
        &mut self.steps
    }

    #[cfg(test)]
    pub(super) fn scheduler(&self) -> &Scheduler {
        &self.steps.scheduler
    }

    /// Executes a command. [`EngineCommand::Shutdown`] is handled by the thread, not here.
    pub(super) fn apply(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Generate(submission) => self.submit(*submission),
            EngineCommand::Fork(fork) => self.steps.scheduler.fork(&fork),
            EngineCommand::Resume(id) => self.steps.scheduler.resume(id),
            EngineCommand::Stop(id) => self.steps.scheduler.stop(id),
            EngineCommand::Close(id) => {
                self.steps.scheduler.close(id);
                self.unload_retired();
            }
            EngineCommand::LoadAdapter { dir, reply } => {
                // The caller has stopped waiting, so nobody else would unload the adapter.
                if let Err(Ok(adapter)) = reply.send(self.load_adapter(&dir)) {
                    self.retire(adapter);
                }
            }
            EngineCommand::UnloadAdapter(adapter) => self.retire(adapter),
            // The weights stay replaced even if the caller has stopped waiting for the reply.
            EngineCommand::ReplaceWeights { weights, reply } => drop(reply.send(self.replace_weights(&weights))),
            EngineCommand::Snapshot(reply) => drop(reply.send(self.snapshot())),
            EngineCommand::Shutdown(_) => {}
        }
    }

    /// Returns `true` if a command has to wait for the pass in flight, because the command concerns the backend or a
    /// session of that pass.
    pub(super) fn concerns_flight(&self, command: &EngineCommand) -> bool {
        match command {
            EngineCommand::Generate(submission) => self.steps.is_in_flight(submission.session),
            EngineCommand::Fork(fork) => self.steps.is_in_flight(fork.parent),
            EngineCommand::Resume(id) | EngineCommand::Stop(id) => self.steps.is_in_flight(*id),
            // Closing the last session of a retired adapter unloads the adapter, which concerns the backend.
            EngineCommand::Close(id) => self.adapters.is_retiring() || self.steps.is_in_flight(*id),
            EngineCommand::LoadAdapter { .. }
            | EngineCommand::UnloadAdapter(_)
            | EngineCommand::ReplaceWeights { .. }
            | EngineCommand::Shutdown(_) => true,
            EngineCommand::Snapshot(_) => false,
        }
    }

    fn submit(&mut self, submission: Submission) {
        match self.accept(&submission) {
            Ok(masking) => self.steps.scheduler.submit(submission, masking),
            Err(error) => self.steps.scheduler.refuse(submission, error),
        }
    }

    /// Checks that a turn can begin. For a constrained turn, starts the computation of the first mask.
    fn accept(&mut self, submission: &Submission) -> Result<Option<Masking>, EngineError> {
        if let Some(reason) = self.stop_flag.stopped() {
            return Err(EngineError::Dead(reason.to_owned()));
        }
        self.adapters.check(submission.options.adapter)?;
        self.masks.begin_turn(&submission.generate)
    }

    /// Loads an adapter. A panic fails this call only.
    fn load_adapter(&mut self, dir: &Path) -> Result<LoadedAdapter, EngineError> {
        // Loading can take longer than many steps, and the tokens of the last step may not be sent yet.
        self.steps.send();
        match self.steps.passes.load_adapter(dir) {
            Ok(slot) => Ok(self.adapters.open(slot)),
            Err(reason) => {
                self.steps.stop_if_lost();
                Err(EngineError::Adapter(reason))
            }
        }
    }

    fn retire(&mut self, adapter: LoadedAdapter) {
        if self.adapters.retire(adapter) {
            self.unload_retired();
        }
    }

    /// Unloads the retired adapters that no session uses. A panic concerns its adapter only.
    fn unload_retired(&mut self) {
        let StepLoop { scheduler, passes, .. } = &mut self.steps;
        let mut failed = false;
        let unload = |slot: AdapterSlot| {
            if let Err(reason) = passes.unload_adapter(slot) {
                // No client waits for the end of an unload, so the log is the only place for the error.
                tracing::error!(slot = slot.0, reason, "could not unload an adapter: its memory may stay in use");
                failed = true;
            }
        };
        self.adapters.remove_unused(|slot| scheduler.uses_adapter(slot), unload);
        if failed {
            self.steps.stop_if_lost();
        }
    }

    /// Replaces the weights of an engine without sessions and adapters. A panic fails this call only.
    fn replace_weights(&mut self, weights: &Weights) -> Result<(), EngineError> {
        // Sessions and adapters hold KV and deltas of the previous weights.
        let sessions = self.steps.scheduler.len();
        let adapters = self.adapters.len();
        if sessions + adapters > 0 {
            return Err(EngineError::Weights(format!(
                "{sessions} sessions and {adapters} adapters still use the previous weights: close and unload them first"
            )));
        }
        let replaced = self.steps.passes.replace_weights(weights);
        match replaced {
            Ok(()) => self.steps.scheduler.replace_base(self.adapters.next_generation()),
            Err(_) => drop(self.steps.stop_if_lost()),
        }
        replaced.map_err(EngineError::Weights)
    }

    /// Takes a snapshot, in time proportional to the number of sessions and without calling the backend.
    fn snapshot(&self) -> EngineSnapshot {
        let (sessions, blocks) = self.steps.scheduler.snapshot(Instant::now());
        let adapters = self.adapters.snapshot(&sessions);
        EngineSnapshot { steps: self.counters.steps_total.get(), sessions, blocks, adapters }
    }

    /// Shuts down at the end of the engine thread: fails every open turn, and frees the backend unless it is lost.
    pub(super) fn shut_down(self) {
        self.steps.shut_down();
    }
}
