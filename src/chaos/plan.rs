//! What a run is to be.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;

use crate::run;

/// The model that is no model.
pub(crate) const MOCK: &str = "mock";

/// Runs a real server under clients that leave, readers that are slow, adapter swaps, index commits, poisoned passages
/// and SIGTERM at random, and says whether it kept its promises.
#[derive(Debug, Clone, Parser)]
#[command(name = "chaos")]
pub(crate) struct Plan {
    /// How long the load lasts.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) minutes: f64,

    /// What is served: `mock`, or what `waymark serve --model` takes, such as `smollm2-135m-instruct`.
    #[arg(long, default_value = MOCK)]
    pub(crate) model: String,

    /// Where weights are kept.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,

    /// A policy directory with an adapter for the model, served under two names in turn; with the mock it is not needed.
    #[arg(long, value_name = "DIR")]
    pub(crate) adapter: Option<PathBuf>,

    /// What is asked and what goes wrong when derives from it.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Clients at the same time.
    #[arg(long, default_value_t = 64)]
    pub(crate) clients: usize,

    /// Tokens that one answer may take.
    #[arg(long, default_value_t = 256)]
    pub(crate) max_tokens: usize,

    /// Milliseconds that a step of the mock takes.
    #[arg(long, default_value_t = 2)]
    pub(crate) step_ms: u64,

    /// Where the server's log goes; into a folder that is gone afterwards when not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Also write the report as Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

impl Plan {
    /// How long the load lasts.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    /// Whether no weights are needed, and answers are known in advance.
    pub(crate) fn mock(&self) -> bool {
        self.model == MOCK
    }

    /// Carries it out and prints the report.
    ///
    /// # Errors
    /// When the server cannot be started, or broke a promise.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        ensure!(self.minutes > 0.0 && self.minutes < 1e5, "--minutes must be above 0");
        ensure!(self.clients > 0 && self.max_tokens > 0, "--clients and --max-tokens must be at least 1");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(run::run(self))
    }
}
