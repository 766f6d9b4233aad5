//! The command line of `train`: one file per command.

mod asked;
mod bar;
mod blend;
mod card;
mod data;
mod dpo;
mod eval;
mod field;
mod grpo;
mod host;
mod keep;
mod machine;
mod plan;
mod producer;
mod report;
mod rolling;
mod rollout;
mod sft;
mod sheet;
mod show;

use clap::{Parser, Subcommand};
use waymark::cli::logging;
use waymark::config::LogFormat;

/// The trainer of Waymark: policies that think, search and answer, learnt in the loop they are served in.
#[derive(Debug, Parser)]
#[command(name = "train", version, propagate_version = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What is logged, to standard error: a level (`warn`, `info`, `debug`) or a filter such as `waymark=debug`.
    #[arg(long, env = "WAYMARK_LOG", value_name = "FILTER", global = true)]
    log: Option<String>,

    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
The way to a policy:
  train data --help                               build trajectories to imitate from questions, gold and real searches
  train sft  --recipe training/recipes/routerag-smollm2.toml --data samples.jsonl --out runs/sft
  train grpo --recipe training/recipes/routerag-smollm2.toml --init runs/sft --stage 1 \\
             --questions questions.jsonl --index corpus.index --out runs/stage1
  train dpo  --help                               or learn from preferences instead: TeaRAG, EVO-RAG
  train rollout --help; train keep --help         or imitate what it gets right by itself
  train blend --help                              or go a part of the way from one policy to another
  train eval --policy runs/stage1/policy --questions eval.jsonl --index corpus.index
  train show runs/stage1/samples.jsonl            read a trajectory
  waymark serve --policy runs/stage1/policy --index corpus.index

--dry-run prints what a run would do, how long it would take and how much memory. A run that was killed goes on where
it was when the same command is given again.";

#[derive(Debug, Subcommand)]
enum Command {
    Data(data::Args),
    Sft(sft::Args),
    Grpo(grpo::Args),
    Dpo(dpo::Args),
    Rollout(rollout::Args),
    Keep(keep::Args),
    Blend(blend::Args),
    Eval(eval::Args),
    Report(report::Args),
    Show(show::Args),
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Whatever stopped it, with its causes.
    pub fn run(self) -> anyhow::Result<()> {
        let log = self.log.as_deref();
        match self.command {
            Command::Data(args) => args.run(log),
            Command::Sft(args) => args.run(log),
            Command::Grpo(args) => args.run(log),
            Command::Dpo(args) => args.run(log),
            Command::Rollout(args) => args.run(log),
            Command::Keep(args) => args.run(),
            Command::Blend(args) => args.run(),
            Command::Eval(args) => args.run(log),
            Command::Report(args) => args.run(),
            Command::Show(args) => args.run(log),
        }
    }
}

/// Runs a command that waits for an engine. What it logs begins at `level` where `log` says nothing.
fn block_on(log: Option<&str>, level: &str, command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    logging::start(log, level, LogFormat::Text)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(command)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn help_says_all_that_is_to_be_said_of_a_command() {
        let long =
            |name: &str| Cli::command().find_subcommand(name).and_then(|command| command.get_long_about().cloned());
        for (name, said) in [("grpo", "A run that was killed goes on"), ("keep", "learns them as it learns any other")]
        {
            let text = long(name).unwrap_or_default().to_string();
            assert!(text.contains(said), "{name}: {text}");
        }
    }
}
