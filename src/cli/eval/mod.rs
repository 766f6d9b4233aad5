//! `waymark eval`: how good it is, measured on questions whose answers are known.

mod metric;
mod policy;
mod questions;
mod report;
mod retrieval;
mod sheet;
mod way;

pub use policy::Episodes as PolicyArgs;
pub(in crate::cli) use questions::Questions;
pub(in crate::cli) use way::Way;

/// Measures how good policies are at questions whose answers are known, or, with `retrieval`, how good searches are.
///
/// Episodes run side by side in one engine. EM and F1 are SQuAD's, the best over all answers that count as right; SF-F1
/// and UAR are PathRouter's. An episode is valid when each of its turns is an action that the protocol knows and the last
/// one is an answer that the policy gave and closed by itself.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  waymark eval --policy routerag --index corpus.index --questions questions.jsonl --limit 50
  waymark eval --policy run/sft --policy run/stage1 --index corpus.index --questions questions.jsonl --json report.json"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    policy: policy::Episodes,
}

/// What else to evaluate.
#[derive(Debug, clap::Subcommand)]
enum Command {
    Retrieval(retrieval::Args),
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::logging::start(log, "warn", crate::config::LogFormat::Text)?;
        match self.command {
            Some(Command::Retrieval(args)) => tokio::task::block_in_place(|| args.run()),
            None => self.policy.run().await,
        }
    }
}
