//! One step: plan, forward pass, and what is left when the pass fails.
//!
//! A step has two halves. Between them a backend that works beside this thread computes, and this thread prepares the next
//! step: [`Core::begin`], then commands that do not concern the pass, [`Core::prepare`], [`Core::conclude`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Instant;

use waymark_models::{BLOCK, Want};

use super::backend::BackendError;
use super::command::Command;
use super::core::Core;
use super::error::EngineError;
use super::schedule::Planned;
use super::sequence::Phase;
use super::worker::message;

/// Steps between two audits of the block accounting.
const AUDIT: u64 = 256;

/// A pass under way; its rows are [`Core::planned`].
#[derive(Debug)]
pub(super) struct Flight {
    began: Instant,
    submitted: Result<(), String>,
}

impl Core {
    /// Does one step, if there is anything to do.
    #[cfg(test)]
    pub(super) fn step(&mut self) {
        if self.begin() {
            self.conclude();
        }
    }

    /// Begins a step. False when there is nothing to do; otherwise it must be [concluded](Self::conclude).
    pub(super) fn begin(&mut self) -> bool {
        let began = Instant::now();
        self.plan();
        if self.planned.is_empty() {
            self.unstick();
            return false;
        }
        let planned = std::mem::take(&mut self.planned);
        self.counters.batch_rows.observe(planned.len() as f64);
        let submitted = self.begin_pass(&planned);
        self.planned = planned;
        self.flight = Some(Flight { began, submitted });
        true
    }

    /// True when a command has to wait for the pass under way: it is about one of its sessions, or about the backend.
    pub(super) fn concerns_flight(&self, command: &Command) -> bool {
        let session = match command {
            Command::Generate(submission) => submission.session,
            Command::Resume(id) | Command::Stop(id) | Command::Close(id) => *id,
            Command::LoadAdapter { .. }
            | Command::UnloadAdapter(_)
            | Command::ReplaceWeights { .. }
            | Command::Shutdown(_) => return true,
            Command::Snapshot(_) => return false,
        };
        // Closing the last session of an adapter that was retired unloads it.
        matches!(command, Command::Close(_)) && self.retiring() || self.planned.iter().any(|row| row.session == session)
    }

    /// While the backend works: tells the readers of the step before, and takes sessions into the batch of the next one.
    pub(super) fn prepare(&mut self) {
        self.wake();
        self.admit_ahead();
    }

    /// True when the backend works beside this thread.
    pub(super) fn overlaps(&self) -> bool {
        self.backend.overlaps()
    }

    /// Tells the readers to whom something was delivered.
    pub(super) fn wake(&mut self) {
        self.wakers.drain(..).for_each(std::task::Waker::wake);
    }

    /// Ends the step that was begun.
    pub(super) fn conclude(&mut self) {
        let Some(Flight { began, submitted }) = self.flight.take() else { return };
        let planned = std::mem::take(&mut self.planned);
        let result = submitted.and_then(|()| self.collect());
        if self.settle_pass(&planned, result) {
            self.failures = 0;
        } else {
            self.failures += 1;
        }
        self.planned = planned;
        if self.failures >= self.config.max_failures {
            self.probe();
        }
        self.counters.cache_evictions_total.add(self.pool.drain_overwritten());
        self.count_graphs();
        if self.counters.steps_total.get().is_multiple_of(AUDIT) {
            self.audit();
        }
        self.gauge();
        self.counters.step_seconds.observe(began.elapsed().as_secs_f64());
    }

    /// Runs some rows from beginning to end.
    fn execute(&mut self, planned: &[Planned]) -> bool {
        let result = self.begin_pass(planned).and_then(|()| self.collect());
        self.settle_pass(planned, result)
    }

    /// What becomes of a pass over some rows: their tokens; or, if it failed, each by itself, so that only those fail that
    /// fail alone. True when any row succeeded.
    fn settle_pass(&mut self, planned: &[Planned], result: Result<(), String>) -> bool {
        let Err(reason) = result else { return self.commit(planned) };
        self.counters.step_failures_total.add(1);
        if planned.len() > 1 {
            // Of a row that fails alone its own request tells.
            tracing::error!(rows = planned.len(), reason, "a forward pass failed: its rows are computed alone");
        }
        if self.check_lost() {
            return false;
        }
        match planned {
            [row] => {
                self.fail(row.session, EngineError::Backend(reason));
                false
            }
            // All of them, not only up to the first that succeeds. Who was stopped meanwhile needs none.
            rows => rows.iter().filter(|row| self.runs(row.session) && self.execute(slice::from_ref(*row))).count() > 0,
        }
    }

    fn runs(&self, id: u64) -> bool {
        self.sequences.get(&id).is_some_and(|sequence| sequence.phase == Phase::Running)
    }

    /// Lays out the rows and begins their pass.
    fn begin_pass(&mut self, planned: &[Planned]) -> Result<(), String> {
        self.counters.steps_total.add(1);
        self.batch.clear();
        self.picks.clear();
        let picks = self.backend.overlaps();
        for row in planned {
            let Some(sequence) = self.sequences.get_mut(&row.session) else { continue };
            let (start, end) = (sequence.computed, sequence.computed + row.tokens);
            self.batch.push(
                &sequence.ids[start..end],
                start,
                &sequence.table[..end.div_ceil(BLOCK)],
                sequence.adapter.map(|adapter| adapter.slot),
                if row.samples { Want::Last } else { Want::Nothing },
            );
            if row.samples {
                let (turn, len) = (sequence.turn.as_mut().filter(|_| picks), sequence.ids.len());
                self.picks.push(turn.and_then(|turn| turn.pick(len)));
            }
        }
        self.launch()
    }

    /// Begins the pass of the batch as it is.
    fn launch(&mut self) -> Result<(), String> {
        let Self { backend, batch, picks, output, .. } = self;
        let began = Instant::now();
        let submitted = contain(|| backend.submit(batch, picks, output));
        if let Some(landed) = self.landed.take() {
            let gap = if self.backend.overlaps() { landed.elapsed() } else { began - landed };
            self.counters.gap_seconds.observe(gap.as_secs_f64());
        }
        submitted
    }

    /// Waits for the pass that was begun.
    fn collect(&mut self) -> Result<(), String> {
        let Self { backend, batch, output, .. } = self;
        let collected = contain(|| backend.collect(output));
        self.landed = Some(Instant::now());
        collected?;
        let drawn = output.drawn.iter().flatten().count();
        if output.logits.rows() + drawn < batch.logit_rows() {
            return Err(format!("{} rows of logits for {}", output.logits.rows(), batch.logit_rows() - drawn));
        }
        Ok(())
    }

    /// After several steps in which nothing succeeded: is it the backend, or what it was asked? Only if it cannot compute
    /// a single harmless token either, the engine is dead. So nobody can kill it with a request that always fails.
    fn probe(&mut self) {
        let Some(block) = self.pool.take() else { return };
        self.batch.clear();
        self.picks.clear();
        self.batch.push(&[0], 0, &[block], None, Want::Last);
        let result = self.launch().and_then(|()| self.collect());
        self.pool.release(block);
        let failures = std::mem::take(&mut self.failures);
        let reason = match result {
            Err(reason) => reason,
            Ok(()) if self.output.logits.row(0).iter().any(|logit| logit.is_nan()) => {
                "the model yields no numbers".into()
            }
            Ok(()) => return,
        };
        self.pulse.stop(&format!("{failures} steps in a row failed, the last one with: {reason}"));
        self.fail_all();
    }

    /// Sessions wait and none can run: by construction impossible. If it happens all the same, it must not become a
    /// busy loop without end.
    fn unstick(&mut self) {
        if let Some((_, &id)) = self.queues.waiting.first_key_value() {
            self.counters.invariant_violations_total.add(1);
            self.fail(id, EngineError::Backend("no KV blocks could be found for this request".into()));
        }
        self.gauge();
    }
}

/// Runs half a pass. The backend may be left in any state by a panic: its contract is to write everything again in the next
/// pass.
fn contain(half: impl FnOnce() -> Result<(), BackendError>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(half)) {
        Err(panic) => Err(format!("panic: {}", message(panic.as_ref()))),
        Ok(result) => result.map_err(|error| error.to_string()),
    }
}
