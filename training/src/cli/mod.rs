//! Command line of `train`, one file per command.

mod blend;
mod compute_args;
mod data;
mod dpo;
mod dry_run;
mod eval;
mod experiment;
mod gpu_plan;
mod grpo;
mod host_args;
mod initial_policy;
mod keep;
mod observer;
mod plan;
mod progress_bar;
mod question_args;
mod question_split;
mod recipe_args;
mod report;
mod rollout;
mod rollout_args;
mod run_facts;
mod sft;
mod show;
mod tie;

use clap::{Parser, Subcommand};
use waymark_runtime::config::LogFormat;
use waymark_runtime::logging;

/// Trains Waymark policies that think, search and answer, in the same loop that serves them.
#[derive(Debug, Parser)]
#[command(name = "train", version, propagate_version = true, after_help = EXAMPLES)]
pub struct TrainCli {
    /// Log filter, written to standard error, for example `warn` or `waymark=debug`.
    #[arg(long, env = "WAYMARK_LOG", value_name = "FILTER", global = true)]
    log: Option<String>,

    /// Exit when standard input closes. Experiments start their jobs with it.
    #[arg(long, hide = true, global = true)]
    tied: bool,

    #[command(subcommand)]
    command: TrainCommand,
}

const EXAMPLES: &str = "\
Steps to a policy:
  train data --help                          build trajectories to imitate
  train sft  --recipe training/recipes/routerag-smollm2.toml \\
      --data samples.jsonl --out runs/sft
  train plan --recipe training/recipes/routerag-smollm2.toml
                                             see what its rewards pay for
  train grpo --recipe training/recipes/routerag-smollm2.toml \\
      --init runs/sft --stage 1 \\
      --questions questions.jsonl --index corpus.index --out runs/stage1
  train dpo  --help                          or train on preferences instead
  train rollout --help; train keep --help    or imitate what it gets right
  train blend --help                         or blend two policies
  train eval --policy runs/stage1/policy --questions eval.jsonl \\
      --index corpus.index
  train show runs/stage1/samples.jsonl       read a trajectory
  train experiment experiments/headroom.toml
                                             all of these from one file
  waymark serve --policy runs/stage1/policy --index corpus.index

--dry-run prints the planned work with estimates of time and memory. The same
command resumes an interrupted run.";

#[derive(Debug, Subcommand)]
enum TrainCommand {
    Data(data::Args),
    Sft(sft::Args),
    Plan(plan::Args),
    Grpo(grpo::Args),
    Dpo(dpo::Args),
    Rollout(rollout::Args),
    Keep(keep::Args),
    Blend(blend::Args),
    Eval(eval::Args),
    Experiment(experiment::Args),
    Report(report::Args),
    Show(show::Args),
}

impl TrainCli {
    /// Runs the command.
    ///
    /// # Errors
    /// Any error that stops the command, with its causes.
    pub fn run(self) -> anyhow::Result<()> {
        let log = self.log.as_deref();
        if self.tied {
            tie::to_standard_input()?;
        }
        match self.command {
            TrainCommand::Data(args) => args.run(log),
            TrainCommand::Sft(args) => args.run(log),
            TrainCommand::Plan(args) => args.run(log),
            TrainCommand::Grpo(args) => args.run(log),
            TrainCommand::Dpo(args) => args.run(log),
            TrainCommand::Rollout(args) => args.run(log),
            TrainCommand::Keep(args) => args.run(),
            TrainCommand::Blend(args) => args.run(),
            TrainCommand::Eval(args) => args.run(log),
            TrainCommand::Experiment(args) => args.run(log),
            TrainCommand::Report(args) => args.run(),
            TrainCommand::Show(args) => args.run(log),
        }
    }
}

/// Runs a command that awaits an engine. `level` is the log level if the filter `log` is absent.
fn block_on(log: Option<&str>, level: &str, command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    logging::start(log, level, LogFormat::Text)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(command)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Returns the examples after the help of a command and of its subcommands.
    fn examples(command: &clap::Command) -> Vec<String> {
        let own = command.get_after_help().into_iter().chain(command.get_after_long_help());
        own.map(ToString::to_string).chain(command.get_subcommands().flat_map(examples)).collect()
    }

    #[test]
    fn examples_fit_into_a_terminal() {
        let texts = examples(&TrainCli::command());
        assert!(texts.len() > 5, "{texts:?}");
        // A line that clap wraps would be pasted as two commands.
        for text in texts {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    #[test]
    fn long_help_holds_the_whole_description() {
        let long = |name: &str| {
            TrainCli::command().find_subcommand(name).and_then(|command| command.get_long_about().cloned())
        };
        for (name, said) in [
            ("grpo", "The same command resumes an interrupted run"),
            ("keep", "trains on the kept trajectories like on any others"),
        ] {
            let text = long(name).unwrap_or_default().to_string();
            assert!(text.contains(said), "{name}: {text}");
        }
    }
}
