//! Shows a run and writes its policy, while it goes on and at its end.

use std::io::{self, Write};
use std::ops::ControlFlow;

use toml::Table;
use waymark_models::gradient::Learner;

use super::bar::Bar;
use crate::TrainError;
use crate::ledger::{Ledger, Watch};
use crate::product;
use crate::recipe::Recipe;
use crate::run::Row;

/// Shows a run and writes its policy with every checkpoint, so that one can be served before the run is over.
pub(super) struct Producer<'a> {
    pub(super) bar: Bar,
    pub(super) recipe: &'a Recipe,
    pub(super) kind: &'static str,
    pub(super) data: Vec<(String, String)>,
    pub(super) before: Option<Table>,
    pub(super) base: product::Base<'a>,
}

impl Producer<'_> {
    /// Writes the policy of the best step and says where it is.
    pub(super) fn finish(&self, ledger: &Ledger, learner: &mut Learner) -> anyhow::Result<()> {
        self.bar.end();
        ledger.restore_best(learner)?;
        self.write(ledger, learner)?;
        Ok(writeln!(io::stdout(), "{}", ledger.folder().policy().display())?)
    }

    fn write(&self, ledger: &Ledger, learner: &Learner) -> Result<(), TrainError> {
        product::finish(ledger, learner, self.recipe, self.kind, self.data.clone(), self.before.clone(), self.base)
    }
}

impl Watch for Producer<'_> {
    fn row(&mut self, row: &Row) -> ControlFlow<()> {
        self.bar.show(row);
        ControlFlow::Continue(())
    }

    fn saved(&mut self, ledger: &Ledger, learner: &Learner) -> Result<(), TrainError> {
        let state = ledger.state();
        let best = state.best.is_none_or(|(step, _)| step == state.step);
        if best { self.write(ledger, learner) } else { Ok(()) }
    }
}
