//! The synchronous heart of the engine: sessions, their blocks, and what becomes of a command. It knows no threads, so
//! that tests can drive it operation by operation.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use waymark_models::cuda::graphs::GraphUse;
use waymark_models::sampler::{Pick, Sampler};
use waymark_models::tokenizer::TokenBytes;
use waymark_models::{AdapterSlot, ForwardBatch};

use super::backend::{Backend, Output};
use super::command::{Command, Submission};
use super::config::EngineConfig;
use super::counters::Counters;
use super::draw::Draw;
use super::error::EngineError;
use super::health::Pulse;
use super::masking::{Masking, Masks};
use super::pool::Pool;
use super::prefix::Key;
use super::request::{Adapter, SessionOptions};
use super::schedule::{Planned, Queues};
use super::sequence::{Phase, Running, Sequence};
use super::step::Flight;
use super::stop::Matcher;
use super::token::Finish;
use super::worker::message;

/// Everything the engine's thread owns.
pub(super) struct Core {
    pub(super) backend: Box<dyn Backend>,
    pub(super) config: EngineConfig,
    pub(super) bytes: Arc<TokenBytes>,
    pub(super) counters: Arc<Counters>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) pool: Pool,
    pub(super) sequences: HashMap<u64, Sequence>,
    pub(super) queues: Queues,
    /// Longest sequence, in tokens.
    pub(super) limit: usize,
    /// Identity of the base weights.
    pub(super) base: u64,
    adapters: Vec<Adapter>,
    /// Adapters that go when their last session has gone.
    retired: Vec<Adapter>,
    pub(super) last_generation: u64,
    /// Steps in a row in which no row succeeded.
    pub(super) failures: u32,
    pub(super) planned: Vec<Planned>,
    pub(super) draws: Vec<Draw>,
    masks: Masks,
    pub(super) batch: ForwardBatch,
    pub(super) picks: Vec<Option<Pick>>,
    pub(super) output: Output,
    /// What was counted of the backend's recordings.
    graphs: GraphUse,
    lost: bool,
    pub(super) flight: Option<Flight>,
    /// When the last pass ended, until the next one begins, weights are loaded, or there is nothing to do.
    pub(super) landed: Option<Instant>,
    /// Of readers to whom something was delivered.
    pub(super) wakers: Vec<Waker>,
}

impl Core {
    pub(super) fn new(
        backend: Box<dyn Backend>,
        config: EngineConfig,
        bytes: Arc<TokenBytes>,
        counters: Arc<Counters>,
        pulse: Arc<Pulse>,
    ) -> Self {
        let spec = backend.spec();
        let mut core = Self {
            pool: Pool::new(spec.blocks),
            limit: spec.limit(),
            base: spec.generation,
            last_generation: spec.generation,
            config,
            bytes,
            counters,
            pulse,
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
            output: Output::default(),
            graphs: GraphUse::default(),
            lost: false,
            flight: None,
            landed: None,
            wakers: Vec::new(),
            backend,
        };
        core.gauge();
        core.count_graphs();
        core
    }

    /// True when a step could do something.
    pub(super) fn busy(&self) -> bool {
        !self.queues.running.is_empty() || !self.queues.waiting.is_empty()
    }

    /// Carries out a command. [`Command::Shutdown`] concerns the thread, not the core.
    pub(super) fn apply(&mut self, command: Command) {
        match command {
            Command::Generate(submission) => self.submit(*submission),
            Command::Resume(id) => self.resume(id),
            Command::Stop(id) => self.stop(id),
            Command::Close(id) => self.close(id),
            Command::LoadAdapter { dir, reply } => {
                self.landed = None;
                // Nobody waits any more: the adapter would never be unloaded.
                if let Err(Ok(adapter)) = reply.send(self.load_adapter(&dir)) {
                    self.retire(adapter);
                }
            }
            Command::UnloadAdapter(adapter) => self.retire(adapter),
            // Who asked and waits no more has them all the same.
            Command::ReplaceWeights { weights, reply } => {
                self.landed = None;
                drop(reply.send(self.replace_weights(&weights)));
            }
            Command::Snapshot(reply) => drop(reply.send(self.snapshot())),
            Command::Shutdown(_) => {}
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
            // An earlier turn was refused, and with it the tokens it brought.
            self.counters.turn_failures_total.add(1);
            let reason = "an earlier turn of this session was refused: open another one";
            return submission.outbox.end(Err(EngineError::Request(reason.to_owned())));
        }
        self.stop(id);
        let ticket = self.queues.tick();
        let base = self.base;
        let sequence = self.sequences.entry(id).or_insert_with(|| {
            let SessionOptions { adapter, salt, .. } = submission.options;
            let root = Key::root(base, adapter.map(|adapter| adapter.generation), salt);
            Sequence::new(id, ticket, submission.options, root)
        });
        sequence.extend(submission.keep, &submission.append, &mut self.pool);
        sequence.turn = Some(Running {
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

    fn accepts(&self, adapter: Option<Adapter>) -> Result<(), EngineError> {
        if let Some(reason) = self.pulse.stopped() {
            return Err(EngineError::Dead(reason.to_owned()));
        }
        match adapter {
            Some(adapter) if !self.adapters.contains(&adapter) => {
                Err(EngineError::Adapter(format!("generation {} is not loaded", adapter.generation)))
            }
            _ => Ok(()),
        }
    }

    /// What a constrained turn may hold begins to be found out at once.
    fn masking(&mut self, submission: &Submission) -> Result<Option<Masking>, EngineError> {
        let constraint = submission.generate.constraint.as_ref();
        constraint.map(|constraint| self.masks.begin(constraint)).transpose().map_err(EngineError::Sample)
    }

    /// The reader has caught up: back into the queue, at the session's old place.
    fn resume(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.get_mut(&id).filter(|sequence| sequence.phase == Phase::Stalled) {
            self.queues.wait(sequence);
        }
    }

    /// Ends a turn whose owner has lost interest; the session stays, parked.
    pub(super) fn stop(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && let Some(turn) = sequence.turn.take()
        {
            turn.stage.end(sequence.ids.len() - turn.begin);
            self.queues.set_aside(sequence, Phase::Parked);
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

    /// Ends a turn as it should; the session is parked with its blocks.
    pub(super) fn finish(&mut self, id: u64, finish: Finish) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        self.queues.set_aside(sequence, Phase::Parked);
        if let Some(turn) = sequence.turn.take() {
            turn.stage.end(sequence.ids.len() - turn.begin);
            turn.outbox.finish(finish, &mut self.wakers);
        }
    }

    /// Ends a turn with an error. What the session computed is not trusted any more, neither for it nor for others.
    pub(super) fn fail(&mut self, id: u64, error: EngineError) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        self.queues.leave(sequence);
        sequence.discard(&mut self.pool);
        self.queues.set_aside(sequence, Phase::Parked);
        if let Some(turn) = sequence.turn.take() {
            self.counters.turn_failures_total.add(1);
            turn.stage.tell(|| tracing::error!(session = id, %error, "turn failed"));
            turn.stage.end(sequence.ids.len() - turn.begin);
            turn.outbox.end(Err(error));
        }
    }

    /// Ends every turn, after the engine has been declared dead.
    pub(super) fn fail_all(&mut self) {
        let reason = self.pulse.stopped().unwrap_or("no reason given").to_owned();
        let open = self.sequences.values().filter(|sequence| sequence.turn.is_some());
        for id in open.map(|sequence| sequence.id).collect::<Vec<_>>() {
            self.fail(id, EngineError::Dead(reason.clone()));
        }
    }

    /// The adapters that are served, and those that go with their last session.
    pub(super) fn adapters(&self) -> (&[Adapter], &[Adapter]) {
        (&self.adapters, &self.retired)
    }

    /// A panic is the adapter's fault and concerns nobody but whoever wants it: the backend applies none that it has not
    /// returned.
    fn load_adapter(&mut self, dir: &Path) -> Result<Adapter, EngineError> {
        let backend = &mut self.backend;
        let loaded = catch_unwind(AssertUnwindSafe(|| backend.load_adapter(dir)));
        self.count_graphs();
        let reason = match loaded {
            Ok(Ok(slot)) => return Ok(self.enlist(slot)),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panic: {}", message(panic.as_ref())),
        };
        self.check_lost();
        Err(EngineError::Adapter(reason))
    }

    /// An adapter that is served from now on.
    fn enlist(&mut self, slot: AdapterSlot) -> Adapter {
        self.last_generation += 1;
        let adapter = Adapter { slot, generation: self.last_generation };
        self.adapters.push(adapter);
        self.weigh();
        adapter
    }

    /// After something failed: if no pass can succeed any more, everything ends. True then.
    pub(super) fn check_lost(&mut self) -> bool {
        let Some(reason) = self.backend.lost() else { return false };
        self.lost = true;
        self.pulse.stop(&reason);
        self.fail_all();
        true
    }

    /// Ends with its thread. A backend that is lost is left as it is: to give back what a device holds may mean to wait for
    /// it without end.
    pub(super) fn leave(self) {
        if self.lost {
            std::mem::forget(self.backend);
        }
    }

    /// Counts what the backend recorded since it was last asked.
    pub(super) fn count_graphs(&mut self) {
        let (before, now) = (self.graphs, self.backend.graphs());
        self.graphs = now;
        self.counters.graph_recordings_total.add(now.recorded.saturating_sub(before.recorded));
        self.counters.graph_refusals_total.add(now.refused.saturating_sub(before.refused));
    }

    fn retire(&mut self, adapter: Adapter) {
        if let Some(at) = self.adapters.iter().position(|other| *other == adapter) {
            self.retired.push(self.adapters.swap_remove(at));
            self.unload_retired();
        }
    }

    fn unload_retired(&mut self) {
        let sequences = &self.sequences;
        let used =
            |slot: AdapterSlot| sequences.values().any(|s| s.adapter.is_some_and(|adapter| adapter.slot == slot));
        let (backend, before) = (&mut self.backend, self.retired.len());
        self.retired.retain(|adapter| {
            let keep = used(adapter.slot);
            if !keep {
                backend.unload_adapter(adapter.slot);
            }
            keep
        });
        if self.retired.len() < before {
            self.weigh();
        }
    }

    /// True while an adapter waits for its last session.
    pub(super) fn retiring(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Compares the sums of the block accounting; counts what does not add up. Takes time in proportion to the sessions.
    pub(super) fn audit(&self) {
        let held = self.sequences.values().map(|sequence| sequence.table.len()).sum();
        if !self.pool.balanced(held) {
            self.counters.invariant_violations_total.add(1);
            tracing::error!(held, used = self.pool.used(), free = self.pool.free(), "KV blocks do not add up");
        }
    }

    /// Before the thread goes to sleep.
    pub(super) fn rest(&mut self) {
        self.landed = None;
        self.wake();
        self.audit();
        self.gauge();
    }

    pub(super) fn gauge(&self) {
        let counters = &self.counters;
        counters.blocks_free.set(self.pool.free());
        counters.blocks_cached.set(self.pool.cached());
        counters.blocks_used.set(self.pool.used());
        self.weigh();
        let (running, waiting) = (self.queues.running.len(), self.queues.waiting.len());
        counters.sessions_running.set(running);
        counters.sessions_waiting.set(waiting);
        counters.sessions_stalled.set(self.queues.stalled);
        counters.sessions_parked.set(self.sequences.len() - running - waiting - self.queues.stalled);
    }

    /// Shows what the backend holds. Not while a pass is under way.
    fn weigh(&self) {
        let (counters, footprint) = (&self.counters, self.backend.footprint());
        counters.kv_bytes.set(footprint.kv);
        counters.adapters.set(self.adapters.len() + self.retired.len());
        counters.adapter_bytes.set(footprint.adapters);
    }
}
