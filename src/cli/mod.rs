//! The command line: one file per command.

mod arguments;
mod ask;
mod assembly;
mod bench;
mod build_bars;
mod change;
mod chat;
mod client;
mod collector_client;
mod completions;
mod config;
mod corpus;
mod credentials;
mod demo;
mod dialogue;
mod doctor;
mod documents;
mod episode;
mod eval;
mod explain;
mod export;
mod health;
mod index;
mod inspect;
mod key;
mod man;
mod mcp;
mod openapi;
mod policy;
mod publish;
mod pull;
mod search;
mod serve;
mod server_args;
mod snapshots;
mod start;
mod state_store;
mod status;
mod target;
mod telemetry;
mod trace;
mod triples;

use std::env;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::client::Client;
pub use self::trace::Printer;

/// An inference server for trained agentic RAG policies.
///
/// A policy is a language model trained to answer in a loop: it thinks, searches, reads what was found, and answers.
/// Waymark runs the model, the loop and the indexes in one process and serves them over HTTP.
#[derive(Debug, Parser)]
#[command(name = "waymark", version, propagate_version = true, after_help = EXAMPLES)]
pub struct Cli {
    /// Log filter, written to standard error: a level (`warn`, `info`, `debug`) or a filter such as `waymark=debug`.
    #[arg(long, env = "WAYMARK_LOG", value_name = "FILTER", global = true)]
    log: Option<String>,

    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  waymark demo                        small weights, a small corpus, a server
  waymark index build --corpus corpus.jsonl --out corpus.index
  waymark serve --index corpus.index  the API at http://127.0.0.1:8080
  waymark ask --index corpus.index \"Who painted the Mona Lisa?\"
  waymark chat --index corpus.index   a conversation

An environment variable named in the help of a flag sets the flag as well.
`--config FILE` reads the flags of a server from a file.";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Demo(demo::Args),
    Pull(pull::Args),
    Inspect(inspect::Args),
    /// Builds, changes and inspects indexes.
    #[command(subcommand)]
    Index(index::IndexCommand),
    Search(search::Args),
    Ask(ask::Args),
    Chat(chat::Args),
    Eval(eval::Args),
    /// Measures the engine or the server.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Creates, lists and revokes API keys.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Lists, shows and checks policies.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    Health(health::Args),
    Mcp(mcp::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    /// Shows the configuration of a server.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Completions(completions::Args),
    Man(man::Args),
    Openapi(openapi::Args),
}

/// Time for abandoned blocking work to finish at shutdown, such as a commit whose client has been told that the server
/// stops. A commit is published whole or not at all.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

impl Cli {
    /// Parses the command line and the configuration file that it names. Exits the program if they are invalid.
    pub fn read() -> Self {
        let arguments = arguments::complete(env::args_os().collect(), |name| env::var_os(name));
        let arguments = arguments.unwrap_or_else(|error| Self::command().error(ErrorKind::InvalidValue, error).exit());
        let matches = Self::command().try_get_matches_from(&arguments.all).unwrap_or_else(|error| {
            let _ = error.print();
            if let Some(file) = arguments.file.as_ref().filter(|_| error.use_stderr()) {
                eprintln!("\nFlags were also read from {}.", file.display());
            }
            std::process::exit(error.exit_code());
        });
        let asking = matches.subcommand().filter(|(name, _)| ["ask", "chat"].contains(name));
        if let Some(reason) = asking.and_then(|(_, matches)| target::unused_flag(matches, &arguments.of_file)) {
            Self::command().error(ErrorKind::ArgumentConflict, reason).exit();
        }
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command.
    ///
    /// # Errors
    /// Any error of the command, with its causes.
    pub fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let result = runtime.block_on(async {
            match self.command {
                Command::Serve(args) => args.run(self.log.as_deref()).await,
                Command::Demo(args) => args.run(self.log.as_deref()).await,
                Command::Pull(args) => args.run(self.log.as_deref()).await,
                Command::Inspect(args) => tokio::task::block_in_place(|| args.run()),
                Command::Index(command) => command.run(self.log.as_deref()).await,
                Command::Search(args) => args.run(self.log.as_deref()).await,
                Command::Ask(args) => args.run(self.log.as_deref()).await,
                Command::Chat(args) => args.run(self.log.as_deref()).await,
                Command::Eval(args) => args.run(self.log.as_deref()).await,
                Command::Bench(command) => command.run(self.log.as_deref()).await,
                Command::Key(command) => command.run(),
                Command::Health(args) => args.run().await,
                Command::Policy(command) => command.run(self.log.as_deref()).await,
                Command::Mcp(args) => args.run().await,
                Command::Status(args) => args.run().await,
                Command::Doctor(args) => args.run(),
                Command::Config(command) => command.run(),
                Command::Completions(args) => args.run(),
                Command::Man(args) => args.run(),
                Command::Openapi(args) => args.run(),
            }
        });
        // Dropping the runtime would wait for blocking work without end, and ignore a second signal.
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        result
    }
}

#[cfg(test)]
mod tests {
    use waymark_models::catalog::Catalog;

    use super::{Cli, CommandFactory};

    /// Returns the examples after the help of a command and of its subcommands.
    fn examples(command: &clap::Command) -> Vec<String> {
        let own = command.get_after_help().into_iter().chain(command.get_after_long_help());
        own.map(ToString::to_string).chain(command.get_subcommands().flat_map(examples)).collect()
    }

    #[test]
    fn examples_fit_into_a_terminal() {
        // A line that clap wraps would be pasted as two commands.
        for text in examples(&Cli::command()) {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    #[test]
    fn models_in_examples_are_paths_or_in_the_catalog() {
        let texts = examples(&Cli::command());
        let catalog = Catalog::bundled();
        let models = texts.iter().flat_map(|text| text.split("--model ").skip(1));
        let models: Vec<&str> = models.filter_map(|rest| rest.split_whitespace().next()).collect();
        assert!(models.len() > 1, "{texts:?}");
        for model in models {
            let path = model.contains('/') || model.ends_with(".gguf");
            assert!(path || catalog.get(model).is_some(), "{model} is not in the catalog");
        }
    }
}
