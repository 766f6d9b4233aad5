//! One step: plan, forward pass, and what is left when the pass fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Instant;

use waymark_models::{BLOCK, Want};

use super::core::Core;
use super::error::EngineError;
use super::schedule::Planned;
use super::worker::message;

/// Steps between two audits of the block accounting.
const AUDIT: u64 = 256;

impl Core {
    /// Does one step, if there is anything to do.
    pub(super) fn step(&mut self) {
        let began = Instant::now();
        self.plan();
        if self.planned.is_empty() {
            return self.unstick();
        }
        let planned = std::mem::take(&mut self.planned);
        self.counters.batch_rows.observe(planned.len() as f64);
        if self.execute(&planned) {
            self.failures = 0;
        } else {
            self.failures += 1;
        }
        self.planned = planned;
        if self.failures >= self.config.max_failures {
            self.probe();
        }
        self.counters.cache_evictions_total.add(self.pool.drain_overwritten());
        if self.counters.steps_total.get().is_multiple_of(AUDIT) {
            self.audit();
        }
        self.gauge();
        self.counters.step_seconds.observe(began.elapsed().as_secs_f64());
    }

    /// Runs the rows together; if that fails, one by one, so that only those fail that fail alone. True when any row
    /// succeeded.
    fn execute(&mut self, planned: &[Planned]) -> bool {
        match self.forward(planned) {
            Ok(()) => self.commit(planned),
            Err(reason) => {
                self.counters.step_failures_total.add(1);
                match planned {
                    [row] => {
                        self.fail(row.session, EngineError::Backend(reason));
                        false
                    }
                    rows => {
                        tracing::error!(
                            rows = rows.len(),
                            reason,
                            "a forward pass failed: its rows are computed alone"
                        );
                        // All of them, not only up to the first that succeeds.
                        rows.iter().filter(|row| self.execute(slice::from_ref(*row))).count() > 0
                    }
                }
            }
        }
    }

    fn forward(&mut self, planned: &[Planned]) -> Result<(), String> {
        self.counters.steps_total.add(1);
        self.batch.clear();
        for row in planned {
            let Some(sequence) = self.sequences.get(&row.session) else { continue };
            let (start, end) = (sequence.computed, sequence.computed + row.tokens);
            self.batch.push(
                &sequence.ids[start..end],
                start,
                &sequence.table[..end.div_ceil(BLOCK)],
                sequence.adapter.map(|adapter| adapter.slot),
                if row.samples { Want::Last } else { Want::Nothing },
            );
        }
        self.pass()
    }

    /// Runs the batch as it is.
    fn pass(&mut self) -> Result<(), String> {
        let (backend, batch, logits) = (&mut self.backend, &self.batch, &mut self.logits);
        // The backend may be left in any state: its contract is to write everything again in the next pass.
        let result = catch_unwind(AssertUnwindSafe(|| backend.forward(batch, logits)));
        match result {
            Err(panic) => Err(format!("panic: {}", message(panic.as_ref()))),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(())) if logits.rows() < batch.logit_rows() => {
                Err(format!("{} rows of logits for {}", logits.rows(), batch.logit_rows()))
            }
            Ok(Ok(())) => Ok(()),
        }
    }

    /// After several steps in which nothing succeeded: is it the backend, or what it was asked? Only if it cannot compute
    /// a single harmless token either, the engine is dead. So nobody can kill it with a request that always fails.
    fn probe(&mut self) {
        let Some(block) = self.pool.take() else { return };
        self.batch.clear();
        self.batch.push(&[0], 0, &[block], None, Want::Last);
        let result = self.pass();
        self.pool.release(block);
        let failures = std::mem::take(&mut self.failures);
        let reason = match result {
            Err(reason) => reason,
            Ok(()) if self.logits.row(0).iter().any(|logit| logit.is_nan()) => "the model yields no numbers".into(),
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
