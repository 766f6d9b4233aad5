//! `waymark eval`: how good it is, measured on questions whose answers are known.

mod metric;
mod questions;
mod report;
mod retrieval;
mod way;

pub(in crate::cli) use questions::Questions;
pub(in crate::cli) use way::Way;

/// What to evaluate.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// How much of the supporting passages each way of searching finds.
    Retrieval(retrieval::Args),
}

impl Command {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::logging::start(log, "warn", crate::config::LogFormat::Text)?;
        match self {
            Command::Retrieval(args) => tokio::task::block_in_place(|| args.run()),
        }
    }
}
