//! The log: to standard error, as lines for a person or as JSON.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts the log. `filter` is what was typed; `quiet` what counts when nothing was.
pub fn start(filter: Option<&str>, quiet: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = filter.unwrap_or(quiet);
    let filter = EnvFilter::builder().parse(filter).with_context(|| format!("--log {filter}: not a log filter"))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))
}
