//! The log: to standard error, as lines for a person or as JSON. Traces, where somebody collects them, are made of the
//! same spans.

use std::future::Future;
use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use super::telemetry::Traces;
use crate::config::{LogFormat, ServeArgs};

/// What listens to spans and events.
type Listener = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts the log. `filter` is what was typed; `quiet` what counts when nothing was.
pub fn start(filter: Option<&str>, quiet: &str, format: LogFormat) -> anyhow::Result<()> {
    begin(vec![log(filter.unwrap_or(quiet), format)?])
}

/// Runs a command that serves: with the log as [`start`] has it, and with traces sent to the collector that `serve` names.
/// Those that are left when the command ends are sent then, also where it failed.
pub(super) async fn traced(
    filter: Option<&str>,
    quiet: &str,
    serve: &ServeArgs,
    command: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let mut listeners = vec![log(filter.unwrap_or(quiet), serve.log_format)?];
    let traces = Traces::to(serve.telemetry.otlp_endpoint.as_deref())?;
    listeners.extend(traces.listener());
    begin(listeners)?;
    let ended = command.await;
    tokio::task::spawn_blocking(move || traces.finish()).await?;
    ended
}

fn begin(listeners: Vec<Listener>) -> anyhow::Result<()> {
    tracing_subscriber::registry().with(listeners).try_init().context("cannot start the log")?;
    tell_of_panics();
    Ok(())
}

fn log(filter: &str, format: LogFormat) -> anyhow::Result<Listener> {
    let filter = EnvFilter::builder().parse(filter).with_context(|| format!("--log {filter}: not a log filter"))?;
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    Ok(match format {
        LogFormat::Text => lines.with_filter(filter).boxed(),
        LogFormat::Json => lines.json().with_filter(filter).boxed(),
    })
}

/// A panic becomes a line of the log like any other: in its form, and inside the span of the request it concerns.
fn tell_of_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let reason = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(ToString::to_string);
        let thread = std::thread::current().name().map(str::to_owned);
        tracing::error!(reason, place, thread, "panic");
    }));
}
