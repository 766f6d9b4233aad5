//! Lifecycle of a server process: interruptible start, reloads on SIGHUP, and stop.

use std::future::Future;
use std::io::{self, IsTerminal};
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::config::ServeConfig;
use crate::keys::ApiKeys;
use crate::server::{Hangups, Server, Tls};

/// Waits for `start`, unless `stop` comes first: then the program ends with success. Nothing was served yet, an
/// interrupted download resumes at the next start, and an index is published whole or not at all.
pub(crate) async fn unless_stopped<T: Send + 'static>(
    start: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    stop: Pin<&mut impl Future<Output = ()>>,
) -> anyhow::Result<T> {
    // A separate task, because the start mostly blocks its thread and `select!` could not poll the signal.
    let starting = tokio::spawn(start);
    tokio::select! {
        started = starting => started?,
        () = stop => {
            tracing::info!("stopped during startup");
            // Work in other threads, such as a download, can be abandoned at any point.
            std::process::exit(0);
        }
    }
}

/// Returns `true` if SIGHUP must not end the process: the server has files to reload, or runs without a terminal, as a
/// service that is told to reload. Decided before the start, because SIGHUP must not end the start either.
pub(crate) fn catches_hangups(config: &ServeConfig) -> bool {
    let in_terminal = io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
    has_reloadable_files(config) || !in_terminal
}

/// Returns `true` if a server with `config` has files to reload: keys, certificates, or policy directories.
fn has_reloadable_files(config: &ServeConfig) -> bool {
    let keys = config.access.file.is_some() || config.access.key.is_some();
    let policies = config.policy_root.is_some() || !config.policies.is_empty();
    keys || policies || config.tls.is_some()
}

/// Reloads the files of `server` on every SIGHUP of `hangups`: keys, certificates, and policy directories. Policies have
/// a task of their own, because engines elsewhere may take minutes to load an adapter, and a revoked key must not be
/// accepted meanwhile. Without `hangups` SIGHUP keeps its default action and ends the process.
pub(crate) fn reload_on_hangup(server: &Server, hangups: Option<Hangups>) {
    let Some(mut hangups) = hangups else { return };
    let state = server.state().clone();
    let tls = server.tls();
    // Signals that come during a reload of the policies cause one more.
    let hung_up = Arc::new(Notify::new());
    let reloading = state.clone();
    let noticed = Arc::clone(&hung_up);
    tokio::spawn(async move {
        loop {
            noticed.notified().await;
            reloading.reload_policies().await;
        }
    });
    tokio::spawn(async move {
        loop {
            hangups.next().await;
            let keys = state.keys.clone();
            let tls = tls.clone();
            // Reading the files may block on a slow disk.
            let read = tokio::task::spawn_blocking(move || reload(&keys, tls.as_ref()));
            if let Err(error) = read.await {
                tracing::error!(%error, "the reload failed");
            }
            hung_up.notify_one();
        }
    });
}

/// Reloads keys and certificates; the old ones stay if a file cannot be read.
fn reload(keys: &ApiKeys, tls: Option<&Tls>) {
    match keys.reload() {
        Ok(reloaded) => {
            let known = reloaded.known;
            let added = reloaded.added;
            let removed = reloaded.removed;
            tracing::info!(known, added, removed, "reloaded the API keys");
        }
        Err(error) => tracing::error!(%error, "cannot reload the API keys: the old ones stay in use"),
    }
    match tls.map(Tls::reload) {
        Some(Ok(())) => tracing::info!("reloaded the certificates"),
        Some(Err(error)) => tracing::error!(%error, "cannot reload the certificates: the old ones stay in use"),
        None => {}
    }
}
