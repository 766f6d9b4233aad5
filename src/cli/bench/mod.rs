//! `waymark bench`: benchmarks of the engine, search, the server and the loop.

mod agent;
mod engine;
mod llama;
mod parallel;
mod search;
mod serve;

/// Subcommands of `waymark bench`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    Agent(Box<agent::Args>),
    Engine(engine::Args),
    Search(search::Args),
    Serve(serve::Args),
}

impl BenchCommand {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        waymark_runtime::logging::start(log, "warn", waymark_runtime::config::LogFormat::Text)?;
        match self {
            BenchCommand::Agent(args) => args.run().await,
            BenchCommand::Engine(args) => args.run().await,
            BenchCommand::Search(args) => args.run().await,
            BenchCommand::Serve(args) => args.run().await,
        }
    }
}
