//! `train grpo`.

/// Learns from rewards of its own trajectories.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

impl Args {
    pub(crate) fn run(self, _log: Option<&str>) -> anyhow::Result<()> {
        anyhow::bail!("train grpo is not there yet")
    }
}
