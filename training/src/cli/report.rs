//! `train report`: renders the report of a run.

use std::path::PathBuf;

use anyhow::Context;

use crate::run::{self, RunFolder};

/// Renders the report of a run again, also while the run is in progress.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the run.
    #[arg(value_name = "RUN")]
    run: PathBuf,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let folder = RunFolder::open(&self.run)?;
        run::report(&folder).with_context(|| format!("cannot render the report of {}", self.run.display()))?;
        anstream::println!("{}", folder.report().display());
        Ok(())
    }
}
