//! `train data`.

/// Builds trajectories for the cold start.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

impl Args {
    pub(crate) fn run(self, _log: Option<&str>) -> anyhow::Result<()> {
        anyhow::bail!("train data is not there yet")
    }
}
