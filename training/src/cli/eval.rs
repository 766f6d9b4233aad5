//! `train eval`.

/// Measures a policy.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

impl Args {
    pub(crate) fn run(self, _log: Option<&str>) -> anyhow::Result<()> {
        anyhow::bail!("train eval is not there yet")
    }
}
