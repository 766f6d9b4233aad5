//! `train eval`: the same as `waymark eval`, at hand beside the other commands.

use waymark::cli::eval::PolicyArgs;

/// Measures policies on questions whose answers are known: EM, F1, searches, tokens, time.
///
/// Several --policy are compared with the first, question by question. It is `waymark eval`, with its options.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train eval --policy runs/sft/policy --policy runs/stage1/policy --index popqa.index --questions popqa.jsonl
  train eval --policy routerag --index popqa.index --questions popqa.jsonl --limit 100 --rows rows.jsonl")]
pub(crate) struct Args {
    #[command(flatten)]
    policies: PolicyArgs,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::block_on(log, "warn", self.policies.run())
    }
}
