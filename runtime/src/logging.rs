//! The log, written to standard error as lines for a person or as JSON.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::LogFormat;

/// A subscriber layer that receives spans and events.
pub type LogLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Message of the event that reports a panic.
pub const PANIC: &str = "panic";

/// Log filter for the parser of PDF files, which warns of each broken object: an upload has as many as it likes.
const UPLOADS: &str = "lopdf=error";

/// Starts the log. `filter` is the user's log filter; `quiet` applies if there is none.
///
/// # Errors
/// If the filter cannot be parsed, or a log was started before.
pub fn start(filter: Option<&str>, quiet: &str, format: LogFormat) -> anyhow::Result<()> {
    install(vec![log(filter, quiet, format)?])
}

/// Installs `layers` for the whole process, and a panic hook that logs panics.
///
/// # Errors
/// If a subscriber was installed before.
pub fn install(layers: Vec<LogLayer>) -> anyhow::Result<()> {
    // Before the hook: a panic while installing still reaches the default hook, which needs no subscriber.
    tracing_subscriber::registry().with(layers).try_init().context("cannot start the log")?;
    log_panics();
    Ok(())
}

/// Layer that writes events that pass the user's log filter to standard error, or those that pass `quiet`, without
/// warnings of the PDF parser, if there is none.
///
/// # Errors
/// If the filter cannot be parsed.
pub fn log(filter: Option<&str>, quiet: &str, format: LogFormat) -> anyhow::Result<LogLayer> {
    let filter = filter.map_or_else(|| format!("{quiet},{UPLOADS}"), str::to_owned);
    let filter = EnvFilter::builder().parse(&filter).with_context(|| format!("--log {filter}: not a log filter"))?;
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    Ok(match format {
        LogFormat::Text => lines.with_filter(filter).boxed(),
        // `spans` lists the current span as well, which would otherwise stand in each line twice.
        LogFormat::Json => lines.json().with_current_span(false).with_filter(filter).boxed(),
    })
}

/// Logs panics like other events: in the format of the log, and inside the span of the request.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let reason = panic.payload_as_str().unwrap_or("no message");
        // The default hook would print to standard error between two JSON lines, which no log collector can parse.
        let place = panic.location().map(ToString::to_string);
        let thread = std::thread::current().name().map(str::to_owned);
        tracing::error!(reason, place, thread, "{PANIC}");
    }));
}
