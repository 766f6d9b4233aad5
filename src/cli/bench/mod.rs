//! `waymark bench`: what the engine and the server do on this machine, measured.

mod engine;
mod gpu;
mod llama;
mod search;
mod serve;

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Engine(engine::Args),
    Gpu(gpu::Args),
    Search(search::Args),
    Serve(serve::Args),
}

impl Command {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::logging::start(log, "warn", crate::config::LogFormat::Text)?;
        match self {
            Command::Engine(args) => args.run().await,
            Command::Gpu(args) => args.run().await,
            Command::Search(args) => args.run().await,
            Command::Serve(args) => args.run().await,
        }
    }
}
