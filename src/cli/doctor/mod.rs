//! `waymark doctor`: checks of this machine and of the flags before a server starts.

mod machine;
mod service;

use std::fmt;
use std::io::Write;

use anyhow::ensure;
use owo_colors::OwoColorize;

use crate::config::ServeArgs;

/// Checks whether this machine can run the server that the flags describe: CPU and GPU, memory, address, open files,
/// folders, certificates, state and index. Loads and downloads nothing. The exit code is 1 if the server could not start.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark doctor
  waymark doctor --config /etc/waymark/waymark.toml")]
pub(crate) struct Args {
    #[command(flatten)]
    serve: ServeArgs,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckOutcome {
    /// No problem was found.
    Good,
    /// The server runs, but not as well as it could.
    Warning,
    /// The server does not start.
    Failure,
}

/// A check with its result.
#[derive(Debug, PartialEq, Eq)]
struct DoctorCheck {
    /// Subject of the check, in one word.
    name: &'static str,
    outcome: CheckOutcome,
    /// Finding, and what to do about it.
    detail: String,
}

impl DoctorCheck {
    fn new(name: &'static str, outcome: CheckOutcome, detail: impl Into<String>) -> Self {
        Self { name, outcome, detail: detail.into() }
    }

    fn good(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, CheckOutcome::Good, detail)
    }

    fn warning(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, CheckOutcome::Warning, detail)
    }

    fn failure(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, CheckOutcome::Failure, detail)
    }
}

impl fmt::Display for CheckOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => write!(f, "{}", "ok     ".green()),
            Self::Warning => write!(f, "{}", "warning".yellow()),
            Self::Failure => write!(f, "{}", "failure".red()),
        }
    }
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut checks = vec![machine::cpu()];
        match self.serve.resolve() {
            Ok(config) => {
                checks.push(machine::gpu(config.model.device));
                checks.push(machine::memory(&config));
                checks.push(machine::open_files(config.http.connection.max_open));
                checks.extend(service::checks(&config));
            }
            // All further checks need resolved flags.
            Err(error) => checks.push(DoctorCheck::failure("flags", error.to_string())),
        }
        let mut out = anstream::stdout();
        for DoctorCheck { name, outcome, detail } in &checks {
            writeln!(out, "{outcome}  {name:9}{}", waymark_runtime::printable(detail))?;
        }
        let failures = checks.iter().filter(|check| check.outcome == CheckOutcome::Failure).count();
        ensure!(failures == 0, "{failures} of {} checks failed", checks.len());
        Ok(())
    }
}
