//! `waymark serve`.

use std::future::Future;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use super::embedding::Embedding;
use super::{assembly, logging, start};
use crate::config::{AccessConfig, ServeArgs, ServeConfig};
use crate::server::{Hangups, Server, Tls, stop_signal};

/// Serves policies over HTTP until SIGTERM or Ctrl-C; a second signal ends it at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark serve --index corpus.index
  waymark serve --model model.gguf --policy policies/routerag --index corpus.index --port 0
  waymark serve --mock                            the whole interface without weights")]
pub(crate) struct Args {
    #[command(flatten)]
    serve: ServeArgs,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        let serve = self.serve.clone();
        logging::traced(log, "info", &serve, self.serve()).await
    }

    async fn serve(self) -> anyhow::Result<()> {
        let config = self.serve.resolve()?;
        let step_limit = config.model.device.step_limit;
        // Weights may have to be fetched first: the signals are caught from here on.
        let mut stop = Box::pin(stop_signal());
        let hangups = start::reads_again(&config).then(Hangups::catch);
        let server = start::unless_stopped(async move { bind(&config, None).await }, stop.as_mut()).await?;
        start::reload_on_hangup(&server, hangups);
        writeln!(io::stdout(), "listening on {}", server.url())?;
        until(server, stop, step_limit).await;
        Ok(())
    }
}

/// Assembles what `config` names and listens; `loaded` is the embedder, where it is loaded already.
pub(crate) async fn bind(config: &ServeConfig, loaded: Option<Arc<Embedding>>) -> anyhow::Result<Server> {
    let state = assembly::assemble(config, loaded).await?;
    let tls = config.tls.clone().map(Tls::open).transpose()?;
    let server = Server::bind(config.address, state).await;
    let server = server.with_context(|| format!("cannot listen on {}", config.address))?;
    Ok(match tls {
        Some(tls) => server.with_tls(tls),
        None => server,
    })
}

/// Serves until `stop`, and [ends](crate::engine::Engine::end) the engine's thread.
pub(crate) async fn until(server: Server, stop: impl Future<Output = ()> + Send + 'static, step_limit: Duration) {
    let engine = server.state().runtime.engine.clone();
    server.run(stop).await;
    engine.end(step_limit).await;
}

/// Runs `work` against a server of its own on a free port, and stops the server afterwards.
pub(crate) async fn beside<T, F>(mut config: ServeConfig, work: impl FnOnce(String) -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    config.address = (Ipv4Addr::LOCALHOST, 0).into();
    // Nobody else is to come.
    (config.access, config.tls) = (AccessConfig::default(), None);
    let server = bind(&config, None).await?;
    let url = server.url();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async {
        // Dropping the sender stops the server as well.
        let _ = stopped.await;
    };
    let running = tokio::spawn(until(server, stopped, config.model.device.step_limit));
    let result = work(url).await;
    drop(stop);
    running.await?;
    result
}
