//! Starting a server: what takes long before it listens, what it reads again while it runs, and how it is stopped.

use std::future::Future;
use std::pin::Pin;

use crate::api::auth::Keys;
use crate::config::ServeConfig;
use crate::server::{Hangups, Server, Tls};

/// Waits for `start`, unless `stop` comes first: then the program ends with success. Nothing was served yet, downloads
/// go on where they were broken off, and an index is published whole or not at all.
pub(crate) async fn unless_stopped<T: Send + 'static>(
    start: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    stop: Pin<&mut impl Future<Output = ()>>,
) -> anyhow::Result<T> {
    // On a thread of its own: most of it does not wait but works, and would not let the signal be heard.
    let starting = tokio::spawn(start);
    tokio::select! {
        started = starting => started?,
        () = stop => {
            tracing::info!("stopped before it listened");
            // Whatever is going on in other threads need not come to its end.
            std::process::exit(0);
        }
    }
}

/// Whether a server of `config` has anything to read again at a hang-up: keys, certificates, or policies that come from
/// directories. It is known before the start, in which a hang-up is not to end it either.
pub(crate) fn reads_again(config: &ServeConfig) -> bool {
    let keys = config.access.file.is_some() || config.access.key.is_some();
    let policies = config.policy_root.is_some() || !config.policies.is_empty();
    keys || policies || config.tls.is_some()
}

/// Reads again what `server` has from files, at every one of `hangups`: keys, certificates, and policies that came from
/// directories. Where none are caught, one ends the process as ever.
pub(crate) fn reload_on_hangup(server: &Server, hangups: Option<Hangups>) {
    let Some(mut hangups) = hangups else { return };
    let (state, tls) = (server.state().clone(), server.tls());
    tokio::spawn(async move {
        loop {
            hangups.next().await;
            let (keys, tls) = (state.keys.clone(), tls.clone());
            // A file may lie on a disk that takes its time.
            let read = tokio::task::spawn_blocking(move || reload(&keys, tls.as_ref()));
            if let Err(error) = read.await {
                tracing::error!(%error, "reading again has failed");
            }
            state.reload_policies().await;
        }
    });
}

/// Reads keys and certificates again; what cannot be read stays as it was.
fn reload(keys: &Keys, tls: Option<&Tls>) {
    match keys.reload() {
        Ok(reloaded) => {
            let (known, added, removed) = (reloaded.known, reloaded.added, reloaded.removed);
            tracing::info!(known, added, removed, "API keys read again");
        }
        Err(error) => tracing::error!(%error, "API keys stay as they were"),
    }
    match tls.map(Tls::reload) {
        Some(Ok(())) => tracing::info!("certificates read again"),
        Some(Err(error)) => tracing::error!(%error, "certificates stay as they were"),
        None => {}
    }
}
