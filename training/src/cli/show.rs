//! `train show`.

/// Prints trajectories for people.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

impl Args {
    pub(crate) fn run(self, _log: Option<&str>) -> anyhow::Result<()> {
        anyhow::bail!("train show is not there yet")
    }
}
