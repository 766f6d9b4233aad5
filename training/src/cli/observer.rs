//! Observer of a run that displays its metrics and writes its policy.

use std::io::{self, Write};
use std::ops::ControlFlow;

use toml::Table;
use waymark_models::gradient::Learner;

use super::progress_bar::StepProgress;
use crate::TrainError;
use crate::ledger::{RunLedger, RunObserver};
use crate::policy_writer;
use crate::recipe::Recipe;
use crate::run::MetricsRow;

/// Displays the metrics of a run and writes its policy with every checkpoint, so that a policy can be served before the
/// run ends.
pub(super) struct TerminalObserver<'a> {
    pub(super) bar: StepProgress,
    pub(super) recipe: &'a Recipe,
    pub(super) kind: &'static str,
    pub(super) data: Vec<(String, String)>,
    pub(super) previous_record: Option<Table>,
    pub(super) base: policy_writer::BaseModel<'a>,
}

impl TerminalObserver<'_> {
    /// Writes the policy of the best step with its fingerprint, and prints its path.
    pub(super) fn finish(&self, ledger: &RunLedger, learner: &mut Learner) -> anyhow::Result<()> {
        self.bar.end();
        ledger.restore_best(learner)?;
        self.write(ledger, learner)?;
        policy_writer::add_fingerprint_if_possible(&ledger.folder().policy(), learner, self.base);
        Ok(writeln!(io::stdout(), "{}", ledger.folder().policy().display())?)
    }

    fn write(&self, ledger: &RunLedger, learner: &Learner) -> Result<(), TrainError> {
        policy_writer::finish(
            ledger,
            learner,
            self.recipe,
            self.kind,
            self.data.clone(),
            self.previous_record.clone(),
            self.base,
        )
    }
}

impl RunObserver for TerminalObserver<'_> {
    fn row(&mut self, row: &MetricsRow) -> ControlFlow<()> {
        self.bar.show(row);
        ControlFlow::Continue(())
    }

    fn saved(&mut self, ledger: &RunLedger, learner: &Learner) -> Result<(), TrainError> {
        let state = ledger.state();
        // Only the best policy so far is worth serving, so other checkpoints leave RUN/policy as it is.
        let best = state.best.is_none_or(|(step, _)| step == state.step);
        if best { self.write(ledger, learner) } else { Ok(()) }
    }
}
