//! `train sft`.

/// Learns from given trajectories.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

impl Args {
    pub(crate) fn run(self, _log: Option<&str>) -> anyhow::Result<()> {
        anyhow::bail!("train sft is not there yet")
    }
}
