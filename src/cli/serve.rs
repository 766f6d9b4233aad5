//! `waymark serve`.

use std::future::Future;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use waymark_runtime::InvalidConfiguration;
use waymark_runtime::config::DEFAULT_MODEL;
use waymark_runtime::embedding::Embedding;

use super::credentials::Credentials;
use super::{assembly, start, telemetry};
use crate::config::{AccessConfig, ServeArgs, ServeConfig, StateLocation};
use crate::server::{Hangups, Server, fit_connections, stop_signal};

/// Serves policies over HTTP until SIGTERM or Ctrl-C; a second signal exits at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark serve --index corpus.index
  waymark serve --model model.gguf --policy policies/routerag \\
      --index corpus.index --port 0
  waymark serve --engine vllm=http://gpu:8000 --model Qwen/Qwen3-0.6B \\
      --index corpus.index
  waymark serve --model checkpoints/search-r1 --protocol search-r1 \\
      --index corpus.index
  waymark serve --mock                 the whole API without weights")]
pub(crate) struct Args {
    #[command(flatten)]
    serve: ServeArgs,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        let serve = self.serve.clone();
        telemetry::traced(log, "info", &serve, self.serve()).await
    }

    async fn serve(self) -> anyhow::Result<()> {
        let config = self.serve.resolve().map_err(InvalidConfiguration::new)?;
        warn_of_untrained(&config);
        let step_limit = config.model.device.step_limit;
        // The start may download weights for minutes, so signals are caught before it.
        let mut stop = Box::pin(stop_signal());
        let hangups = start::catches_hangups(&config).then(Hangups::catch);
        let server = start::unless_stopped(async move { listening(&config).await }, stop.as_mut()).await?;
        start::reload_on_hangup(&server, hangups);
        writeln!(io::stdout(), "listening on {}", server.url())?;
        until(server, stop, step_limit).await;
        Ok(())
    }
}

/// Warns if only built-in policies are served, over the default model.
pub(crate) fn warn_of_untrained(config: &ServeConfig) {
    if is_untrained(config) {
        tracing::warn!(
            "no --policy: {DEFAULT_MODEL} alone is not trained to search, and its answers will be poor; give a trained \
             policy, such as --policy models/policies/routerag-smollm2-135m of the source code"
        );
    }
}

/// Returns `true` if the default model is served without a policy that was trained over it. Other models may have been
/// trained in a protocol or follow one well enough.
fn is_untrained(config: &ServeConfig) -> bool {
    let has_policy = !config.policies.is_empty() || config.protocol.is_some() || config.policy_root.is_some();
    !has_policy && config.model.weights.as_deref() == Some(DEFAULT_MODEL)
}

/// Starts a server for `config`, which listens when it is complete.
async fn listening(config: &ServeConfig) -> anyhow::Result<Server> {
    let credentials = Credentials::read(config)?;
    bind(config, credentials, None).await
}

/// Assembles the server for `config` and listens. `loaded` is the embedder if the caller has loaded it already.
pub(crate) async fn bind(
    config: &ServeConfig,
    credentials: Credentials,
    loaded: Option<Arc<Embedding>>,
) -> anyhow::Result<Server> {
    let mut state = assembly::assemble(config, credentials.keys, loaded).await?;
    // Searches run on threads of a pool that replaces those that hang, as the handler demands.
    waymark_index::catch_mapped_faults().context("cannot handle faults in mapped files")?;
    let connections = &mut state.config.connection.max_open;
    *connections = fit_connections(*connections);
    let server = Server::bind(config.address, state).await;
    let server = server.with_context(|| format!("cannot listen on {}", config.address))?;
    Ok(match credentials.tls {
        Some(tls) => server.with_tls(tls),
        None => server,
    })
}

/// Serves until `stop`, and [ends](waymark_engine::Engine::end) the engine's thread.
pub(crate) async fn until(server: Server, stop: impl Future<Output = ()> + Send + 'static, step_limit: Duration) {
    let engine = server.state().runtime.engine.clone();
    server.run(stop).await;
    engine.end(step_limit).await;
}

/// Starts a server on a free port, runs `work` against it, and stops the server.
pub(crate) async fn with_server<T, F>(mut config: ServeConfig, work: impl FnOnce(String) -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    config.address = (Ipv4Addr::LOCALHOST, 0).into();
    // The server is for this process only, so it needs neither keys nor TLS nor a state. The folder of vector stores and
    // accepted changes of the index belong to the server whose configuration this is.
    config.access = AccessConfig::default();
    config.tls = None;
    config.state.location = Some(StateLocation::None);
    config.files.folder = None;
    config.retrieval.writable = false;
    let server = listening(&config).await?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    #[test]
    fn the_default_model_alone_is_untrained() {
        let untrained = |flags: &[&str]| {
            let command = ServeArgs::augment_args(clap::Command::new("serve").no_binary_name(true));
            let args = ServeArgs::from_arg_matches(&command.try_get_matches_from(flags).unwrap()).unwrap();
            is_untrained(&args.resolve().unwrap())
        };
        assert!(untrained(&[]) && untrained(&["--model", DEFAULT_MODEL]));
        for flags in [
            &["--mock"][..],
            &["--model", "other"],
            &["--policy", "some/policy", "--model", DEFAULT_MODEL],
            &["--protocol", "search-r1", "--model", DEFAULT_MODEL],
            &["--policy-root", "policies"],
        ] {
            assert!(!untrained(flags), "{flags:?}");
        }
    }
}
