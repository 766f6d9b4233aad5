//! `train report`.

use std::path::PathBuf;

use anyhow::Context;

use crate::run::{self, Folder};

/// Draws the report of a run anew, also while the run goes on.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder that a training run writes to.
    #[arg(value_name = "RUN")]
    run: PathBuf,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let folder = Folder::open(&self.run)?;
        run::report(&folder).with_context(|| format!("no report of {}", self.run.display()))?;
        anstream::println!("{}", folder.report().display());
        Ok(())
    }
}
