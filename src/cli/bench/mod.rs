//! `waymark bench`: what the engine and the server do on this machine, measured.

mod engine;
mod gpu;
mod llama;
mod search;
mod serve;

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Decode and prefill rates of the engine, beside llama.cpp where its bench is given.
    Engine(engine::Args),
    /// A card: whether it computes right, its ceilings, decode, prefill, the agentic load, and where a step's time goes.
    Gpu(gpu::Args),
    /// Searches side by side: searches per second, what each takes, and what one that hangs does to the others.
    Search(search::Args),
    /// A server under concurrent questions: questions per second, time to the first token and to the answer.
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
