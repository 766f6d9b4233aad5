//! `waymark eval`: evaluates policies and retrieval on questions with known answers.

mod metric;
mod report;
mod retrieval;

use waymark_runtime::evaluate::PolicyArgs;
use waymark_runtime::logging;

/// Evaluates policies on questions with known answers or, with `retrieval`, searches.
///
/// Episodes run concurrently in one engine. EM and F1 are SQuAD's, the best over all accepted answers; SF-F1 and UAR
/// are PathRouter's. An episode is valid if each of its turns is an action of the protocol and the last one is an
/// answer that the policy closed by itself.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  waymark eval --policy routerag --index corpus.index \\
      --questions questions.jsonl --limit 50
  waymark eval --policy run/sft --policy run/stage1 --index corpus.index \\
      --questions questions.jsonl --json report.json
  waymark eval --policy run/stage1 --policy hippo-rag \\
      --mode free,passage,graph --index corpus.index \\
      --questions questions.jsonl"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<EvalCommand>,

    #[command(flatten)]
    policy: PolicyArgs,
}

/// Subcommands of `waymark eval`.
#[derive(Debug, clap::Subcommand)]
enum EvalCommand {
    Retrieval(retrieval::Args),
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", waymark_runtime::config::LogFormat::Text)?;
        match self.command {
            Some(EvalCommand::Retrieval(args)) => tokio::task::block_in_place(|| args.run()),
            None => self.policy.run().await,
        }
    }
}
