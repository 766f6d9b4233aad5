//! HTTP server: listening, connections, and graceful shutdown.
//!
//! | file | content |
//! |---|---|
//! | `connection_pool` | accepting connections, up to a limit |
//! | `address_limits`, `refused_connections` | connections of one address, and those beyond a limit |
//! | `file_limit` | the process's limit of open files |
//! | `connection`, `timeouts` | one connection, and its timeouts |
//! | `head_scan` | heads that state the length of the body twice |
//! | `unread_body` | bodies that are not read to their end |
//! | `tls` | certificates |
//! | `signal` | signals of the operating system |

mod address_limits;
mod connection;
mod connection_pool;
pub(crate) mod file_limit;
mod head_scan;
mod refused_connections;
mod signal;
mod timeouts;
mod tls;
mod unread_body;

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;

use crate::api::drain::{Drain, DrainPhase};
use crate::api::{self, AppState};
use connection_pool::ConnectionPool;

pub use file_limit::fit_connections;
pub use signal::{Hangups, stop_signal};
pub use tls::{Tls, TlsError};

/// Time for streams to send their last event after the drain's deadline.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Minimum time for connections to close once no work is left.
const MIN_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Server that is already listening, and answers requests once it runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    state: AppState,
    tls: Option<Tls>,
}

impl Server {
    /// Listens on `address`; port 0 selects a free port.
    ///
    /// # Errors
    /// If the address cannot be bound, for example because the port is in use.
    pub async fn bind(address: SocketAddr, state: AppState) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, state, tls: None })
    }

    /// Serves over TLS.
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Returns the state shared by the handlers.
    pub fn state(&self) -> &AppState {
        &self.state
    }

    /// Returns the TLS certificates, if the server uses TLS.
    pub fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// Returns the address the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Serves requests until `shutdown` completes and the subsequent drain is over. When the drain begins, `/ready`
    /// fails and new work is refused; running work continues until the configured deadline and is then ended with an
    /// error. Errors of the listener are logged and retried.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) {
        let Self { listener, state, tls, .. } = self;
        let drain = state.drain.clone();
        let deadline = state.config.drain;
        let times = state.config.connection;
        let mut connection_pool = ConnectionPool::new(api::router(state.clone()), api::overloaded(state), times, tls);
        // New connections are accepted during the drain, so `/ready` can report it.
        let left = tokio::select! {
            () = connection_pool.receive(&listener) => Duration::ZERO,
            left = async {
                shutdown.await;
                wind_down(&drain, deadline).await
            } => left,
        };
        // New connections are refused at once instead of waiting in the backlog.
        drop(listener);
        // The work is over, but a whole response or the end of a stream may still be in our buffers.
        connection_pool.close(left.min(times.send).max(MIN_CLOSE_TIMEOUT)).await;
    }
}

/// Refuses new work, waits for running work until `deadline`, then ends it. Returns the remaining time.
async fn wind_down(drain: &Drain, deadline: Duration) -> Duration {
    let started = Instant::now();
    drain.advance(DrainPhase::Draining);
    tracing::info!(running = drain.running(), seconds = deadline.as_secs_f64(), "draining");
    if tokio::time::timeout(deadline, drain.idle()).await.is_err() {
        tracing::warn!(running = drain.running(), "drain deadline reached: ending running work");
        drain.advance(DrainPhase::Expired);
        if tokio::time::timeout(LAST_EVENT_TIMEOUT, drain.idle()).await.is_err() {
            tracing::warn!(running = drain.running(), "some clients did not receive their last event");
        }
    }
    deadline.saturating_sub(started.elapsed())
}
