//! Taking connections in, as many as there is room for.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::connection::{Closing, serve};
use super::tls::Tls;
use super::watch::Watch;
use crate::config::ConnectionConfig;

/// Connections beyond the bound that are told so; more than these are closed without a word.
const TOLD: usize = 64;

/// What one that is told so may take of everything.
const BRIEFLY: Duration = Duration::from_secs(2);

/// How long nobody is let in when the system has no file descriptor for another connection.
const OUT_OF_FILES: Duration = Duration::from_millis(500);

/// Where connections live: a bounded number of seats, and a few places at the door.
pub(super) struct Hall {
    seats: Arc<Semaphore>,
    door: Arc<Semaphore>,
    router: Router,
    /// Answers those for whom there is no seat.
    overloaded: Router,
    times: ConnectionConfig,
    tls: Option<Tls>,
    closing: watch::Sender<Closing>,
}

impl Hall {
    pub(super) fn new(router: Router, overloaded: Router, times: ConnectionConfig, tls: Option<Tls>) -> Self {
        // Permits are counted in 32 bits where all of them are taken back; no system has so many sockets.
        let most = times.most.min(u32::MAX as usize >> 1);
        Self {
            seats: Arc::new(Semaphore::new(most)),
            door: Arc::new(Semaphore::new(TOLD)),
            router,
            overloaded,
            times: ConnectionConfig { most, ..times },
            tls,
            closing: watch::Sender::new(Closing::No),
        }
    }

    /// Takes in whoever comes; never returns.
    pub(super) async fn receive(&self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.seat(stream, Instant::now()),
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot accept a connection");
                    tokio::time::sleep(OUT_OF_FILES).await;
                }
            }
        }
    }

    fn seat(&self, stream: TcpStream, accepted: Instant) {
        // A token is a small write of its own: without this the kernel would hold it back for the one before it.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "nodelay was refused");
        }
        let (permit, router, times) = if let Ok(seat) = Arc::clone(&self.seats).try_acquire_owned() {
            (seat, self.router.clone(), self.times)
        } else if let Ok(place) = Arc::clone(&self.door).try_acquire_owned() {
            let times = ConnectionConfig { header: BRIEFLY, body: BRIEFLY, send: BRIEFLY, idle: BRIEFLY, ..self.times };
            (place, self.overloaded.clone(), times)
        } else {
            return;
        };
        let (tls, closing) = (self.tls.clone(), self.closing.subscribe());
        tokio::spawn(async move {
            let _permit = permit;
            let watch = Watch::new(times, accepted);
            match tls {
                None => serve(stream, router, watch, closing).await,
                // What the handshake takes is gone from the time of the first head.
                Some(tls) => match timeout_at(accepted + times.header, tls.acceptor().accept(stream)).await {
                    Ok(Ok(stream)) => serve(stream, router, watch, closing).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                },
            }
        });
    }

    /// Lets every connection finish what it is being answered, for `patience`, then closes the rest.
    pub(super) async fn close(&self, patience: Duration) {
        self.closing.send_replace(Closing::Answered);
        if tokio::time::timeout(patience, self.empty()).await.is_err() {
            self.closing.send_replace(Closing::Now);
        }
    }

    /// Returns once every seat is free.
    async fn empty(&self) {
        // Never closed, so this can only succeed.
        let _ = self.seats.acquire_many(u32::try_from(self.times.most).unwrap_or(u32::MAX)).await;
    }
}

/// Whether a connection failed by itself, before it was one.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
