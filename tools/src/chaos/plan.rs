//! Parameters of a run.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;

use crate::{run, small_disk};

/// Name that selects the mock.
pub(crate) const MOCK: &str = "mock";

/// Number of files that this program opens at most: its connections, and those of a flood.
const OPEN_FILES: u64 = 4096;

/// Runs a real server under many faults at once, and reports whether its guarantees held: disconnecting and slow clients,
/// greedy and oversized requests, floods of connections, adapter swaps, index commits, poisoned passages, flipped bits, a
/// full disk, few file descriptors, SIGTERM and SIGKILL.
#[derive(Debug, Clone, Parser)]
#[command(name = "chaos")]
pub(crate) struct ChaosPlan {
    /// Duration of the load, in minutes.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) minutes: f64,

    /// Model to serve: `mock`, or a value of `waymark serve --model` such as `smollm2-135m-instruct`.
    #[arg(long, default_value = MOCK)]
    pub(crate) model: String,

    /// Folder for downloaded weights.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,

    /// Directory of a policy with an adapter for the model, served under two names in turn. Not needed with the mock.
    #[arg(long, value_name = "DIR")]
    pub(crate) adapter: Option<PathBuf>,

    /// Seed of all requests and faults.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Number of concurrent clients.
    #[arg(long, default_value_t = 64)]
    pub(crate) clients: usize,

    /// Number of concurrent clients with long prompts and lists of prompts, which share a key.
    #[arg(long, default_value_t = 4)]
    pub(crate) greedy_clients: usize,

    /// Maximum number of tokens per response.
    #[arg(long, default_value_t = 256)]
    pub(crate) max_tokens: usize,

    /// Duration of a step of the mock, in milliseconds.
    #[arg(long, default_value_t = 2)]
    pub(crate) step_ms: u64,

    /// File for the server's log. The default is in a temporary folder.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Also write the report as Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Set by the program itself when it starts again with a small disk.
    #[arg(long = &small_disk::INSIDE[2..], hide = true)]
    pub(crate) inside_namespace: bool,

    /// Reason why the index has no disk of its own.
    #[arg(skip)]
    pub(crate) no_disk: Option<String>,
}

impl ChaosPlan {
    /// Duration of the load.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    /// Returns `true` if the mock is served, whose answers are known in advance.
    pub(crate) fn mock(&self) -> bool {
        self.model == MOCK
    }

    /// Executes the run and prints the report.
    ///
    /// # Errors
    /// If the server cannot be started, or a guarantee did not hold.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        ensure!(self.minutes > 0.0 && self.minutes < 1e5, "--minutes must be above 0");
        ensure!(self.clients > 0 && self.max_tokens > 0, "--clients and --max-tokens must be at least 1");
        if !self.inside_namespace {
            self.no_disk = Some(small_disk::enter());
        }
        let files = rlimit::increase_nofile_limit(OPEN_FILES)?;
        ensure!(files >= OPEN_FILES / 2, "this program may open {files} files only: raise `ulimit -n` to {OPEN_FILES}");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(run::run(self))
    }
}
