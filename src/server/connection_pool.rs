//! Accepts connections, up to a limit.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::address_limits::{AddressLimits, network};
use super::connection::{ShutdownStage, serve};
use super::refused_connections::RefusedConnections;
use super::timeouts::ConnectionTimer;
use super::tls::Tls;
use crate::api::auth::ClientAddress;
use crate::config::ConnectionConfig;

/// Timeout for all stages of a connection beyond the limit.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause after a failed accept, which usually means that the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Connection pool: a bounded number of served connections, and a few more on which only probes are served.
pub(super) struct ConnectionPool {
    slots: Arc<Semaphore>,
    addresses: AddressLimits,
    refused: RefusedConnections,
    router: Router,
    /// Router for connections beyond the limit.
    overloaded: Router,
    times: ConnectionConfig,
    tls: Option<Tls>,
    closing: watch::Sender<ShutdownStage>,
}

impl ConnectionPool {
    pub(super) fn new(router: Router, overloaded: Router, times: ConnectionConfig, tls: Option<Tls>) -> Self {
        // `empty` acquires all permits at once, and their number is a `u32`. No system has that many sockets.
        let max_open = times.max_open.min(u32::MAX as usize >> 1);
        Self {
            slots: Arc::new(Semaphore::new(max_open)),
            addresses: AddressLimits::new(times.per_address()),
            refused: RefusedConnections::default(),
            router,
            overloaded,
            times: ConnectionConfig { max_open, ..times },
            tls,
            closing: watch::Sender::new(ShutdownStage::No),
        }
    }

    /// Accepts connections; never returns.
    pub(super) async fn receive(&mut self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => self.admit(stream, address.ip(), Instant::now()).await,
                Err(error) if is_client_error(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn admit(&mut self, stream: TcpStream, address: IpAddr, accepted: Instant) {
        // Each token is a small write of its own. Nagle's algorithm would delay it until the previous one is
        // acknowledged.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let client = ClientAddress(network(address));
        let address_slot = self.addresses.admit(address);
        let slot = address_slot.and_then(|from| Some((from, Arc::clone(&self.slots).try_acquire_owned().ok()?)));
        if let Some(slot) = slot {
            tokio::spawn(self.serve(stream, client, self.router.clone(), self.times, accepted, slot));
        } else if let Some(slot) = self.refused.slot().await {
            let times = ConnectionConfig {
                header: REFUSAL_TIMEOUT,
                body: REFUSAL_TIMEOUT,
                send: REFUSAL_TIMEOUT,
                idle: REFUSAL_TIMEOUT,
                ..self.times
            };
            let task = tokio::spawn(self.serve(stream, client, self.overloaded.clone(), times, accepted, slot));
            self.refused.hold(task.abort_handle());
        }
    }

    /// Serves one connection. Keeps `slot` until the connection ends.
    fn serve<S: Send + 'static>(
        &self,
        stream: TcpStream,
        client: ClientAddress,
        router: Router,
        times: ConnectionConfig,
        accepted: Instant,
        slot: S,
    ) -> impl Future<Output = ()> + Send + 'static + use<S> {
        let tls = self.tls.clone();
        let closing = self.closing.subscribe();
        async move {
            let _slot = slot;
            let watch = ConnectionTimer::new(times, accepted);
            match tls {
                None => serve(stream, client, router, watch, closing).await,
                // The header timeout covers the TLS handshake and the first request head together.
                Some(tls) => match timeout_at(accepted + times.header, tls.acceptor().accept(stream)).await {
                    Ok(Ok(stream)) => serve(stream, client, router, watch, closing).await,
                    Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake timed out"),
                },
            }
        }
    }

    /// Lets every connection finish its current response for up to `patience`, then closes the rest.
    pub(super) async fn close(&self, patience: Duration) {
        self.closing.send_replace(ShutdownStage::Answered);
        if tokio::time::timeout(patience, self.empty()).await.is_err() {
            self.closing.send_replace(ShutdownStage::Now);
        }
    }

    /// Waits until no connection is left.
    async fn empty(&self) {
        // The semaphore is never closed, so acquiring can only succeed.
        let _ = self.slots.acquire_many(u32::try_from(self.times.max_open).unwrap_or(u32::MAX)).await;
    }
}

/// Returns `true` for errors of a single connection that failed before it was accepted.
fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
