//! Execution of a step: plan, forward pass, delivery, and recovery from a failed pass.
//!
//! A step has two halves. Between them, an asynchronous backend computes while the engine thread prepares the next
//! step: [`StepLoop::begin`], [`StepLoop::send`], then commands that do not concern the pass, [`StepLoop::prepare`],
//! [`StepLoop::conclude`].

use std::slice;
use std::sync::Arc;
use std::time::Instant;

use super::counters::Counters;
use super::delivery::Delivery;
use super::error::EngineError;
use super::health::StopFlag;
use super::pass_runner::PassRunner;
use super::scheduler::{BlockCopy, PlannedRow, Scheduler};

/// Number of steps between two audits of the block accounting.
pub(super) const STEPS_PER_AUDIT: u64 = 256;

/// A pass in flight; its rows are in [`StepLoop::rows`].
#[derive(Debug)]
struct PassInFlight {
    started: Instant,
    submitted: Result<(), String>,
}

/// The steps of the engine, one after the other.
pub(super) struct StepLoop {
    pub(super) scheduler: Scheduler,
    pub(super) passes: PassRunner,
    delivery: Delivery,
    /// Rows of the current step.
    rows: Vec<PlannedRow>,
    flight: Option<PassInFlight>,
    /// Number of consecutive steps in which no row succeeded.
    failures: u32,
    max_failures: u32,
    stop_flag: Arc<StopFlag>,
    counters: Arc<Counters>,
}

impl StepLoop {
    pub(super) fn new(
        scheduler: Scheduler,
        passes: PassRunner,
        delivery: Delivery,
        max_failures: u32,
        stop_flag: Arc<StopFlag>,
        counters: Arc<Counters>,
    ) -> Self {
        let rows = Vec::new();
        let mut steps =
            Self { scheduler, passes, delivery, rows, flight: None, failures: 0, max_failures, stop_flag, counters };
        steps.publish();
        steps
    }

    /// Begins a step. Returns `false` if no pass began; otherwise [`conclude`](Self::conclude) must be called.
    pub(super) fn begin(&mut self) -> bool {
        let started = Instant::now();
        // Taken to satisfy the borrow checker, and put back below to reuse the allocation.
        let mut rows = std::mem::take(&mut self.rows);
        self.scheduler.plan(started, &mut rows);
        let planned = !rows.is_empty();
        self.copy_blocks(&mut rows);
        if rows.is_empty() {
            self.rows = rows;
            if planned {
                self.publish();
            } else {
                self.fail_stuck_session();
            }
            return false;
        }
        self.counters.batch_rows.observe(rows.len() as f64);
        let submitted = self.begin_pass(&rows);
        self.rows = rows;
        self.flight = Some(PassInFlight { started, submitted });
        true
    }

    /// Copies blocks for the planned rows. A session whose block could not be copied fails, without its row.
    fn copy_blocks(&mut self, rows: &mut Vec<PlannedRow>) {
        for BlockCopy { session, from, to } in self.scheduler.take_copies() {
            let Err(reason) = self.passes.copy_block(from, to) else { continue };
            rows.retain(|row| row.session != session);
            if self.stop_if_lost() {
                // Every turn has failed.
                rows.clear();
                return;
            }
            self.scheduler.fail(session, EngineError::Backend(reason));
        }
    }

    /// Returns `true` if the session has a row in the pass in flight. Must be called only during a pass.
    pub(super) fn is_in_flight(&self, session: u64) -> bool {
        self.rows.iter().any(|row| row.session == session)
    }

    /// Sends the tokens of the previous step to their readers, while the backend works.
    pub(super) fn send(&mut self) {
        self.delivery.send(&mut self.scheduler);
    }

    /// Admits sessions for the next step, while the backend works.
    pub(super) fn prepare(&mut self) {
        self.scheduler.admit_ahead(Instant::now());
    }

    /// Ends the step in progress.
    pub(super) fn conclude(&mut self) {
        let Some(PassInFlight { started, submitted }) = self.flight.take() else { return };
        let rows = std::mem::take(&mut self.rows);
        let result = submitted.and_then(|()| self.passes.collect());
        let sound = result.is_ok();
        // One good row shows that the backend works, so only the rows that failed are to blame.
        if self.finish_pass(&rows, result) {
            self.failures = 0;
        } else {
            self.failures += 1;
        }
        if sound {
            self.scheduler.record_step(started.elapsed());
        }
        self.rows = rows;
        if self.failures >= self.max_failures {
            self.probe_backend();
        }
        self.passes.count_recorded_steps();
        if self.counters.steps_total.get().is_multiple_of(STEPS_PER_AUDIT) {
            self.scheduler.audit();
        }
        self.publish();
        self.counters.step_seconds.observe(started.elapsed().as_secs_f64());
    }

    /// Builds the batch and begins its pass.
    fn begin_pass(&mut self, rows: &[PlannedRow]) -> Result<(), String> {
        self.passes.clear();
        for row in rows {
            if let Some(session) = self.scheduler.session_mut(row.session) {
                self.passes.push(session, row);
            }
        }
        self.passes.submit()
    }

    /// Runs a whole pass over some rows.
    fn execute(&mut self, rows: &[PlannedRow]) -> bool {
        let result = self.begin_pass(rows).and_then(|()| self.passes.collect());
        let any = self.finish_pass(rows, result);
        // The other rows' passes follow one by one, and no reader waits for them.
        self.send();
        any
    }

    /// Processes the result of a pass. Rows of a failed pass are run again one by one, without proposed tokens, so
    /// only those fail that fail alone. Returns `true` if any row succeeded.
    fn finish_pass(&mut self, rows: &[PlannedRow], result: Result<(), String>) -> bool {
        let Err(reason) = result else {
            return self.delivery.commit(rows, &mut self.scheduler, &mut self.passes);
        };
        self.counters.step_failures_total.add(1);
        if rows.len() > 1 {
            // A row that fails alone reports the error through its own request.
            tracing::error!(rows = rows.len(), reason, "a forward pass failed: running its rows one by one");
        }
        if self.stop_if_lost() {
            return false;
        }
        if let [row] = rows
            && row.proposed == 0
        {
            self.scheduler.fail(row.session, EngineError::Backend(reason));
            return false;
        }
        let mut runs = |row: &PlannedRow| {
            // A token that was only proposed must not fail its session.
            let row = PlannedRow { proposed: 0, ..*row };
            // A session whose turn was stopped meanwhile is skipped.
            self.scheduler.is_running(row.session) && self.execute(slice::from_ref(&row))
        };
        // `count` instead of `any`, because every row has to run.
        let sound = rows.iter().filter(|row| runs(row)).count();
        if sound == rows.len() {
            // No row is to blame, so the next pass would fail for the same proposed tokens, again and again.
            rows.iter().filter(|row| row.proposed > 0).for_each(|row| self.scheduler.blame_proposals(row.session));
        }
        sound > 0
    }

    /// Tells a broken backend from bad requests, after several steps without a successful row: the engine stops only if
    /// the backend cannot compute a single harmless token either. So no request can stop the engine by always failing.
    fn probe_backend(&mut self) {
        let passes = &mut self.passes;
        // The probe needs a block of its own; without one it is repeated after the next failed step.
        let Some(result) = self.scheduler.with_spare_block(|block| passes.probe(block)) else { return };
        let failures = std::mem::take(&mut self.failures);
        if let Err(reason) = result {
            self.stop(&format!("{failures} consecutive steps failed, the last one with: {reason}"));
        }
    }

    /// Stops the engine if the backend is lost. Called after every failure; returns `true` if the backend is lost.
    pub(super) fn stop_if_lost(&mut self) -> bool {
        let lost = self.passes.lost();
        if let Some(reason) = &lost {
            self.stop(reason);
        }
        lost.is_some()
    }

    fn stop(&mut self, reason: &str) {
        self.stop_flag.stop(reason);
        self.fail_all();
    }

    /// Ends every turn with an error after the engine has stopped.
    pub(super) fn fail_all(&mut self) {
        let reason = self.stop_flag.stopped().unwrap_or("no reason given").to_owned();
        self.scheduler.fail_all(&EngineError::Dead(reason));
    }

    /// Fails a waiting session when no session can run. Impossible by construction; if it happens all the same, it must
    /// not become an endless busy loop.
    fn fail_stuck_session(&mut self) {
        if let Some(id) = self.scheduler.any_waiting() {
            self.counters.invariant_violations_total.add(1);
            self.scheduler.fail(id, EngineError::Backend("no KV blocks are available for this request".into()));
        }
        self.publish();
    }

    /// Prepares the engine for blocking on the next command.
    pub(super) fn prepare_idle(&mut self) {
        self.passes.end_series();
        self.delivery.send(&mut self.scheduler);
        self.scheduler.audit();
        self.publish();
    }

    fn publish(&mut self) {
        self.scheduler.publish();
        self.passes.publish();
    }

    /// Shuts down at the end of the engine thread: fails every open turn and frees the backend unless it is lost.
    pub(super) fn shut_down(mut self) {
        self.fail_all();
        self.delivery.send(&mut self.scheduler);
        self.passes.shut_down();
    }
}
