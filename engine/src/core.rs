//! The synchronous core of the engine: sessions, their blocks and the execution of commands. It uses no threads, so
//! that tests can drive it operation by operation.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use waymark_models::sampler::{Pick, Sampler};
use waymark_models::tokenizer::TokenBytes;
use waymark_models::{AdapterSlot, ForwardBatch};

use super::backend::{Backend, PassOutput, RecordedSteps};
use super::command::{EngineCommand, Submission};
use super::config::EngineConfig;
use super::counters::Counters;
use super::draw::Draw;
use super::error::EngineError;
use super::health::StopFlag;
use super::masking::{Masking, Masks};
use super::pool::BlockPool;
use super::prefix::PrefixKey;
use super::request::{LoadedAdapter, SessionOptions};
use super::schedule::{PlannedRow, Queues};
use super::sequence::{RunningTurn, Sequence, SessionPhase};
use super::step::PassInFlight;
use super::stop::Matcher;
use super::token::TurnFinish;
use super::worker::panic_message;

/// State owned by the engine thread.
pub(super) struct Core {
    pub(super) backend: Box<dyn Backend>,
    pub(super) config: EngineConfig,
    pub(super) bytes: Arc<TokenBytes>,
    pub(super) counters: Arc<Counters>,
    pub(super) stop_flag: Arc<StopFlag>,
    pub(super) pool: BlockPool,
    pub(super) sequences: HashMap<u64, Sequence>,
    pub(super) queues: Queues,
    /// Maximum length of a sequence, in tokens.
    pub(super) limit: usize,
    /// Identity of the base weights.
    pub(super) base: u64,
    adapters: Vec<LoadedAdapter>,
    /// Adapters that are unloaded when their last session closes.
    retired: Vec<LoadedAdapter>,
    pub(super) last_generation: u64,
    /// Number of consecutive steps in which no row succeeded.
    pub(super) failures: u32,
    pub(super) planned: Vec<PlannedRow>,
    pub(super) draws: Vec<Draw>,
    masks: Masks,
    pub(super) batch: ForwardBatch,
    pub(super) picks: Vec<Option<Pick>>,
    pub(super) output: PassOutput,
    /// Recorded steps of the backend that are already in the counters.
    recorded: RecordedSteps,
    lost: bool,
    pub(super) flight: Option<PassInFlight>,
    /// Time at which the last pass ended. `None` once the next pass begins, weights are loaded, or the engine is idle.
    pub(super) last_pass_end: Option<Instant>,
    /// Wakers of readers that have new tokens.
    pub(super) wakers: Vec<Waker>,
}

impl Core {
    pub(super) fn new(
        backend: Box<dyn Backend>,
        config: EngineConfig,
        bytes: Arc<TokenBytes>,
        counters: Arc<Counters>,
        stop_flag: Arc<StopFlag>,
    ) -> Self {
        let spec = backend.spec();
        let mut core = Self {
            pool: BlockPool::new(spec.blocks),
            limit: spec.limit(),
            base: spec.generation,
            last_generation: spec.generation,
            config,
            bytes,
            counters,
            stop_flag,
            sequences: HashMap::new(),
            queues: Queues::default(),
            adapters: Vec::new(),
            retired: Vec::new(),
            failures: 0,
            planned: Vec::new(),
            draws: Vec::new(),
            masks: Masks::default(),
            batch: ForwardBatch::new(),
            picks: Vec::new(),
            output: PassOutput::default(),
            recorded: RecordedSteps::default(),
            lost: false,
            flight: None,
            last_pass_end: None,
            wakers: Vec::new(),
            backend,
        };
        core.publish_gauges();
        core.count_recorded_steps();
        core
    }

    /// Returns `true` if a session is running or waiting.
    pub(super) fn busy(&self) -> bool {
        !self.queues.running.is_empty() || !self.queues.waiting.is_empty()
    }

    /// Executes a command. [`EngineCommand::Shutdown`] is handled by the thread, not here.
    pub(super) fn apply(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Generate(submission) => self.submit(*submission),
            EngineCommand::Resume(id) => self.resume(id),
            EngineCommand::Stop(id) => self.stop(id),
            EngineCommand::Close(id) => self.close(id),
            EngineCommand::LoadAdapter { dir, reply } => {
                self.last_pass_end = None;
                // The caller has stopped waiting, so nobody else would unload the adapter.
                if let Err(Ok(adapter)) = reply.send(self.load_adapter(&dir)) {
                    self.retire(adapter);
                }
            }
            EngineCommand::UnloadAdapter(adapter) => self.retire(adapter),
            // The weights stay replaced even if the caller has stopped waiting for the reply.
            EngineCommand::ReplaceWeights { weights, reply } => {
                self.last_pass_end = None;
                drop(reply.send(self.replace_weights(&weights)));
            }
            EngineCommand::Snapshot(reply) => drop(reply.send(self.snapshot())),
            EngineCommand::Shutdown(_) => {}
        }
    }

    fn submit(&mut self, submission: Submission) {
        let id = submission.session;
        let masking = match self.accepts(submission.options.adapter).and_then(|()| self.masking(&submission)) {
            Ok(masking) => masking,
            Err(error) => {
                self.counters.turn_failures_total.add(1);
                return submission.outbox.end(Err(error));
            }
        };
        let known = self.sequences.get(&id).map_or(0, |sequence| sequence.ids.len());
        if submission.keep > known {
            // An earlier turn was refused together with the tokens it brought.
            self.counters.turn_failures_total.add(1);
            let reason = "an earlier turn of this session was refused: open a new session";
            return submission.outbox.end(Err(EngineError::Request(reason.to_owned())));
        }
        self.stop(id);
        let ticket = self.queues.tick();
        // Copied before `entry` borrows the sequences.
        let base = self.base;
        let sequence = self.sequences.entry(id).or_insert_with(|| {
            let SessionOptions { adapter, salt, .. } = submission.options;
            let root = PrefixKey::root(base, adapter.map(|adapter| adapter.generation), salt);
            Sequence::new(id, ticket, submission.options, root)
        });
        sequence.extend(submission.keep, &submission.append, &mut self.pool);
        sequence.turn = Some(RunningTurn {
            sampler: Sampler::new(submission.generate.sampling.clone()),
            matcher: Matcher::default(),
            masking,
            outbox: submission.outbox,
            begin: sequence.ids.len(),
            submitted: submission.submitted,
            stage: submission.stage,
            started: false,
            permit: submission.permit,
            generate: submission.generate,
        });
        self.counters.turns_total.add(1);
        self.queues.wait(sequence);
    }

    fn accepts(&self, adapter: Option<LoadedAdapter>) -> Result<(), EngineError> {
        if let Some(reason) = self.stop_flag.stopped() {
            return Err(EngineError::Dead(reason.to_owned()));
        }
        match adapter {
            Some(adapter) if !self.adapters.contains(&adapter) => Err(EngineError::Adapter(format!(
                "adapter generation {} is not loaded: load it again",
                adapter.generation
            ))),
            _ => Ok(()),
        }
    }

    /// Starts the computation of the first mask of a constrained turn.
    fn masking(&mut self, submission: &Submission) -> Result<Option<Masking>, EngineError> {
        let constraint = submission.generate.constraint.as_ref();
        constraint.map(|constraint| self.masks.begin(constraint)).transpose().map_err(EngineError::Sample)
    }

    /// Puts a session whose reader has caught up back into the queue, at its old position.
    fn resume(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.get_mut(&id).filter(|sequence| sequence.phase == SessionPhase::Stalled) {
            self.queues.wait(sequence);
        }
    }

    /// Ends a turn that its owner has dropped; the session stays, parked.
    pub(super) fn stop(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && let Some(turn) = sequence.turn.take()
        {
            turn.stage.end(sequence.ids.len() - turn.begin);
            self.queues.set_aside(sequence, SessionPhase::Parked);
            self.counters.cancellations_total.add(1);
        }
    }

    fn close(&mut self, id: u64) {
        self.stop(id);
        let Some(mut sequence) = self.sequences.remove(&id) else { return };
        self.queues.leave(&mut sequence);
        sequence.release(&mut self.pool);
        self.unload_retired();
    }

    /// Ends a turn normally; the session is parked and keeps its blocks.
    pub(super) fn finish(&mut self, id: u64, finish: TurnFinish) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        self.queues.set_aside(sequence, SessionPhase::Parked);
        if let Some(turn) = sequence.turn.take() {
            turn.stage.end(sequence.ids.len() - turn.begin);
            turn.outbox.finish(finish, &mut self.wakers);
        }
    }

    /// Ends a turn with an error. Discards the KV that the session computed, so that no session uses it again.
    pub(super) fn fail(&mut self, id: u64, error: EngineError) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        self.queues.leave(sequence);
        // The KV may be corrupt after a failure, and other sessions must not find it.
        sequence.discard(&mut self.pool);
        self.queues.set_aside(sequence, SessionPhase::Parked);
        if let Some(turn) = sequence.turn.take() {
            self.counters.turn_failures_total.add(1);
            turn.stage.tell(|| tracing::error!(session = id, %error, "turn failed"));
            turn.stage.end(sequence.ids.len() - turn.begin);
            turn.outbox.end(Err(error));
        }
    }

    /// Ends every turn with an error after the engine has stopped.
    pub(super) fn fail_all(&mut self) {
        let reason = self.stop_flag.stopped().unwrap_or("no reason given").to_owned();
        let open = self.sequences.values().filter(|sequence| sequence.turn.is_some());
        for id in open.map(|sequence| sequence.id).collect::<Vec<_>>() {
            self.fail(id, EngineError::Dead(reason.clone()));
        }
    }

    /// Returns the loaded adapters: those open to new sessions, and those that are unloaded with their last session.
    pub(super) fn adapters(&self) -> (&[LoadedAdapter], &[LoadedAdapter]) {
        (&self.adapters, &self.retired)
    }

    /// Loads an adapter. A panic fails this call only: the backend never applies an adapter that it has not returned.
    fn load_adapter(&mut self, dir: &Path) -> Result<LoadedAdapter, EngineError> {
        let backend = &mut self.backend;
        let loaded = catch_unwind(AssertUnwindSafe(|| backend.load_adapter(dir)));
        self.count_recorded_steps();
        let reason = match loaded {
            Ok(Ok(slot)) => return Ok(self.register_adapter(slot)),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panic: {}", panic_message(panic.as_ref())),
        };
        self.check_lost();
        Err(EngineError::Adapter(reason))
    }

    /// Opens a loaded adapter to sessions, under a new generation.
    fn register_adapter(&mut self, slot: AdapterSlot) -> LoadedAdapter {
        self.last_generation += 1;
        let adapter = LoadedAdapter { slot, generation: self.last_generation };
        self.adapters.push(adapter);
        self.publish_memory();
        adapter
    }

    /// Stops the engine if the backend is lost. Called after every failure; returns `true` if the backend is lost.
    pub(super) fn check_lost(&mut self) -> bool {
        let Some(reason) = self.backend.lost() else { return false };
        self.lost = true;
        self.stop_flag.stop(&reason);
        self.fail_all();
        true
    }

    /// Ends with the thread. Leaks a lost backend, since freeing the memory of a lost device may block forever.
    pub(super) fn shut_down(self) {
        if self.lost {
            // Dropping could block forever.
            std::mem::forget(self.backend);
        }
    }

    /// Adds the steps that the backend has recorded since the last call to the counters.
    pub(super) fn count_recorded_steps(&mut self) {
        let before = self.recorded;
        let now = self.backend.recorded_steps();
        self.recorded = now;
        self.counters.graph_recordings_total.add(now.recorded.saturating_sub(before.recorded));
        self.counters.graph_refusals_total.add(now.refused.saturating_sub(before.refused));
    }

    fn retire(&mut self, adapter: LoadedAdapter) {
        if let Some(at) = self.adapters.iter().position(|other| *other == adapter) {
            self.retired.push(self.adapters.swap_remove(at));
            self.unload_retired();
        }
    }

    fn unload_retired(&mut self) {
        let sequences = &self.sequences;
        let used =
            |slot: AdapterSlot| sequences.values().any(|s| s.adapter.is_some_and(|adapter| adapter.slot == slot));
        let backend = &mut self.backend;
        let before = self.retired.len();
        self.retired.retain(|adapter| {
            let keep = used(adapter.slot);
            if !keep {
                backend.unload_adapter(adapter.slot);
            }
            keep
        });
        if self.retired.len() < before {
            self.publish_memory();
        }
    }

    /// Returns `true` while an adapter waits for its last session to close.
    pub(super) fn retiring(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Checks the sums of the block accounting and counts violations. Takes time in proportion to the number of
    /// sessions.
    pub(super) fn audit(&self) {
        let held = self.sequences.values().map(|sequence| sequence.table.len()).sum();
        if !self.pool.balanced(held) {
            self.counters.invariant_violations_total.add(1);
            tracing::error!(
                held,
                used = self.pool.used(),
                free = self.pool.free(),
                "the KV block accounting is inconsistent"
            );
        }
    }

    /// Prepares the engine for blocking on the next command.
    pub(super) fn prepare_idle(&mut self) {
        self.last_pass_end = None;
        self.wake();
        self.audit();
        self.publish_gauges();
    }

    pub(super) fn publish_gauges(&self) {
        let counters = &self.counters;
        counters.blocks_free.set(self.pool.free());
        counters.blocks_cached.set(self.pool.cached());
        counters.blocks_used.set(self.pool.used());
        self.publish_memory();
        let running = self.queues.running.len();
        let waiting = self.queues.waiting.len();
        counters.sessions_running.set(running);
        counters.sessions_waiting.set(waiting);
        counters.sessions_stalled.set(self.queues.stalled);
        counters.sessions_parked.set(self.sequences.len() - running - waiting - self.queues.stalled);
    }

    /// Publishes the memory use of the backend. Must not be called while a pass is in flight.
    fn publish_memory(&self) {
        let counters = &self.counters;
        let footprint = self.backend.footprint();
        counters.kv_bytes.set(footprint.kv);
        counters.adapters.set(self.adapters.len() + self.retired.len());
        counters.adapter_bytes.set(footprint.adapters);
    }
}
