//! `train eval`: same command as `waymark eval`, available from the trainer too.

use waymark_runtime::evaluate::PolicyArgs;

/// Evaluates policies on questions with known answers: EM, F1, searches, tokens, time.
///
/// Compares several --policy with the first, question by question. Accepts the options of `waymark eval`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train eval --policy runs/sft/policy --policy runs/stage1/policy \\
      --index popqa.index --questions popqa.jsonl
  train eval --policy routerag --index popqa.index --questions popqa.jsonl \\
      --limit 100 --rows rows.jsonl")]
pub(crate) struct Args {
    #[command(flatten)]
    policies: PolicyArgs,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::block_on(log, "warn", self.policies.run())
    }
}
