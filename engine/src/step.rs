//! Execution of a step: plan, forward pass and recovery from a failed pass.
//!
//! A step has two halves. Between them, an asynchronous backend computes while the engine thread prepares the next
//! step: [`Core::begin`], then commands that do not concern the pass, [`Core::prepare`], [`Core::conclude`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Instant;

use waymark_models::{BLOCK, LogitPositions};

use super::backend::BackendError;
use super::command::EngineCommand;
use super::core::Core;
use super::error::EngineError;
use super::schedule::PlannedRow;
use super::sequence::SessionPhase;
use super::worker::panic_message;

/// Number of steps between two audits of the block accounting.
const STEPS_PER_AUDIT: u64 = 256;

/// A pass in flight; its rows are in [`Core::planned`].
#[derive(Debug)]
pub(super) struct PassInFlight {
    began: Instant,
    submitted: Result<(), String>,
}

impl Core {
    /// Runs one step, if any session can run.
    #[cfg(test)]
    pub(super) fn step(&mut self) {
        if self.begin() {
            self.conclude();
        }
    }

    /// Begins a step. Returns `false` if there is no work; otherwise [`conclude`](Self::conclude) must be called.
    pub(super) fn begin(&mut self) -> bool {
        let began = Instant::now();
        self.plan();
        if self.planned.is_empty() {
            self.fail_stuck_session();
            return false;
        }
        // Taken to satisfy the borrow checker, and put back below to reuse the allocation.
        let planned = std::mem::take(&mut self.planned);
        self.counters.batch_rows.observe(planned.len() as f64);
        let submitted = self.begin_pass(&planned);
        self.planned = planned;
        self.flight = Some(PassInFlight { began, submitted });
        true
    }

    /// Returns `true` if a command has to wait for the pass in flight, because it concerns one of its sessions or the
    /// backend.
    pub(super) fn concerns_flight(&self, command: &EngineCommand) -> bool {
        let session = match command {
            EngineCommand::Generate(submission) => submission.session,
            EngineCommand::Resume(id) | EngineCommand::Stop(id) | EngineCommand::Close(id) => *id,
            EngineCommand::LoadAdapter { .. }
            | EngineCommand::UnloadAdapter(_)
            | EngineCommand::ReplaceWeights { .. }
            | EngineCommand::Shutdown(_) => return true,
            EngineCommand::Snapshot(_) => return false,
        };
        // Closing the last session of a retired adapter unloads the adapter, which concerns the backend.
        matches!(command, EngineCommand::Close(_)) && self.retiring()
            || self.planned.iter().any(|row| row.session == session)
    }

    /// Wakes the readers of the previous step and admits sessions for the next one, while the backend works.
    pub(super) fn prepare(&mut self) {
        self.wake();
        self.admit_ahead();
    }

    /// Returns `true` if the backend is asynchronous.
    pub(super) fn overlaps(&self) -> bool {
        self.backend.overlaps()
    }

    /// Wakes the readers that have new tokens.
    pub(super) fn wake(&mut self) {
        self.wakers.drain(..).for_each(std::task::Waker::wake);
    }

    /// Ends the step in progress.
    pub(super) fn conclude(&mut self) {
        let Some(PassInFlight { began, submitted }) = self.flight.take() else { return };
        let planned = std::mem::take(&mut self.planned);
        let result = submitted.and_then(|()| self.collect());
        if self.finish_pass(&planned, result) {
            self.failures = 0;
        } else {
            self.failures += 1;
        }
        self.planned = planned;
        if self.failures >= self.config.max_failures {
            self.probe_backend();
        }
        self.counters.cache_evictions_total.add(self.pool.drain_overwritten());
        self.count_recorded_steps();
        if self.counters.steps_total.get().is_multiple_of(STEPS_PER_AUDIT) {
            self.audit();
        }
        self.publish_gauges();
        self.counters.step_seconds.observe(began.elapsed().as_secs_f64());
    }

    /// Runs a whole pass over some rows.
    fn execute(&mut self, planned: &[PlannedRow]) -> bool {
        let result = self.begin_pass(planned).and_then(|()| self.collect());
        self.finish_pass(planned, result)
    }

    /// Processes the result of a pass. Rows of a failed pass are run again one by one, so that only those fail that
    /// fail alone. Returns `true` if any row succeeded.
    fn finish_pass(&mut self, planned: &[PlannedRow], result: Result<(), String>) -> bool {
        let Err(reason) = result else { return self.commit(planned) };
        self.counters.step_failures_total.add(1);
        if planned.len() > 1 {
            // A row that fails alone reports the error through its own request.
            tracing::error!(rows = planned.len(), reason, "a forward pass failed: running its rows one by one");
        }
        if self.check_lost() {
            return false;
        }
        match planned {
            [row] => {
                self.fail(row.session, EngineError::Backend(reason));
                false
            }
            // `count` instead of `any`, because every row has to run. Rows whose turn was stopped meanwhile are
            // skipped.
            rows => rows.iter().filter(|row| self.runs(row.session) && self.execute(slice::from_ref(*row))).count() > 0,
        }
    }

    fn runs(&self, id: u64) -> bool {
        self.sequences.get(&id).is_some_and(|sequence| sequence.phase == SessionPhase::Running)
    }

    /// Builds the batch and begins its pass.
    fn begin_pass(&mut self, planned: &[PlannedRow]) -> Result<(), String> {
        self.counters.steps_total.add(1);
        self.batch.clear();
        self.picks.clear();
        let picks = self.backend.overlaps();
        for row in planned {
            let Some(sequence) = self.sequences.get_mut(&row.session) else { continue };
            let start = sequence.computed;
            let end = sequence.computed + row.tokens;
            self.batch.push(
                &sequence.ids[start..end],
                start,
                &sequence.table[..end.div_ceil(BLOCK)],
                sequence.adapter.map(|adapter| adapter.slot),
                if row.samples { LogitPositions::Last } else { LogitPositions::Nothing },
            );
            if row.samples {
                let turn = sequence.turn.as_mut().filter(|_| picks);
                let len = sequence.ids.len();
                self.picks.push(turn.and_then(|turn| turn.pick(len)));
            }
        }
        self.launch()
    }

    /// Submits the current batch.
    fn launch(&mut self) -> Result<(), String> {
        let Self { backend, batch, picks, output, .. } = self;
        let began = Instant::now();
        let submitted = catch_panic(|| backend.submit(batch, picks, output));
        if let Some(last_pass_end) = self.last_pass_end.take() {
            // An asynchronous pass counts as begun once it is in the device queue, after `submit` returns.
            let gap = if self.backend.overlaps() { last_pass_end.elapsed() } else { began - last_pass_end };
            self.counters.gap_seconds.observe(gap.as_secs_f64());
        }
        submitted
    }

    /// Waits for the pass in flight.
    fn collect(&mut self) -> Result<(), String> {
        let Self { backend, batch, output, .. } = self;
        let collected = catch_panic(|| backend.collect(output));
        self.last_pass_end = Some(Instant::now());
        collected?;
        let drawn = output.drawn.iter().flatten().count();
        // A backend that returns too little would otherwise panic at an index far from its cause.
        if output.logits.rows() + drawn < batch.logit_rows() {
            return Err(format!(
                "the backend returned {} rows of logits instead of {}",
                output.logits.rows(),
                batch.logit_rows() - drawn
            ));
        }
        Ok(())
    }

    /// Tells a broken backend from bad requests, after several steps without a successful row: the engine stops only if
    /// the backend cannot compute a single harmless token either. So no request can stop the engine by always failing.
    fn probe_backend(&mut self) {
        // The probe needs a block of its own; without one it is repeated after the next failed step.
        let Some(block) = self.pool.take() else { return };
        self.batch.clear();
        self.picks.clear();
        self.batch.push(&[0], 0, &[block], None, LogitPositions::Last);
        let result = self.launch().and_then(|()| self.collect());
        self.pool.release(block);
        let failures = std::mem::take(&mut self.failures);
        let reason = match result {
            Err(reason) => reason,
            Ok(()) if self.output.logits.row(0).iter().any(|logit| logit.is_nan()) => {
                "the model returns NaN logits".into()
            }
            Ok(()) => return,
        };
        self.stop_flag.stop(&format!("{failures} consecutive steps failed, the last one with: {reason}"));
        self.fail_all();
    }

    /// Fails a waiting session when no session can run. Impossible by construction; if it happens all the same, it must
    /// not become an endless busy loop.
    fn fail_stuck_session(&mut self) {
        if let Some((_, &id)) = self.queues.waiting.first_key_value() {
            self.counters.invariant_violations_total.add(1);
            self.fail(id, EngineError::Backend("no KV blocks are available for this request".into()));
        }
        self.publish_gauges();
    }
}

/// Runs half a pass and catches panics. The backend may be left in any state: by contract it writes everything again in
/// the next pass.
fn catch_panic(half: impl FnOnce() -> Result<(), BackendError>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(half)) {
        Err(panic) => Err(format!("panic: {}", panic_message(panic.as_ref()))),
        Ok(result) => result.map_err(|error| error.to_string()),
    }
}
