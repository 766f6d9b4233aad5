//! The command line of `train`: one file per command.

mod asked;
mod bar;
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
  train eval --policy runs/stage1/policy --questions eval.jsonl --index corpus.index
  train show runs/stage1/samples.jsonl            read a trajectory
  waymark serve --policy runs/stage1/policy --index corpus.index

--dry-run prints what a run would do, how long it would take and how much memory. A run that was killed goes on where
it was when the same command is given again.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Build trajectories for the cold start.
    Data(data::Args),
    /// Learn from given trajectories.
    Sft(sft::Args),
    /// Learn from rewards of its own trajectories.
    Grpo(grpo::Args),
    /// Learn from preferences between its own trajectories.
    Dpo(dpo::Args),
    /// Let a policy answer questions as in training, and keep what it did.
    Rollout(rollout::Args),
    /// Keep its own trajectories that were right, to learn from them.
    Keep(keep::Args),
    /// Measure a policy.
    Eval(eval::Args),
    /// Draw the report of a run anew.
    Report(report::Args),
    /// Read trajectories in colour.
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
            Command::Eval(args) => args.run(log),
            Command::Report(args) => args.run(),
            Command::Show(args) => args.run(log),
        }
    }
}
