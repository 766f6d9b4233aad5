//! Listening, and going down in good order.
//!
//! | file | what it holds |
//! |---|---|
//! | `hall` | taking connections in, as many as there is room for |
//! | `connection`, `watch` | one connection, and the times it may take |
//! | `tls` | certificates |
//! | `signal` | what the operating system asks for |

mod connection;
mod hall;
mod signal;
mod tls;
mod watch;

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;

use crate::api::drain::{Drain, Phase};
use crate::api::{self, AppState};
use hall::Hall;

pub use signal::{Hangups, stop_signal};
pub use tls::{Tls, TlsError};

/// What streams get, after the drain's deadline, to send their last event.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What connections get at least to close once no work is left.
const CLOSING: Duration = Duration::from_millis(500);

/// A server that listens already and answers once it runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    state: AppState,
    tls: Option<Tls>,
}

impl Server {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// What the operating system says, such as that the port is taken.
    pub async fn bind(address: SocketAddr, state: AppState) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, state, tls: None })
    }

    /// The same server, over TLS.
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// What it serves.
    pub fn state(&self) -> &AppState {
        &self.state
    }

    /// What it proves itself with, if anything.
    pub fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Answers until `shutdown` completes and the drain that follows is over: readiness turns red and new work is
    /// refused at once, running work goes on until the configured deadline, what then is left gets an error. A listener
    /// that fails is logged and tried again.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) {
        let Self { listener, state, tls, .. } = self;
        let drain = state.drain.clone();
        let deadline = state.config.drain;
        let times = state.config.connection;
        let hall = Hall::new(api::router(state.clone()), api::overloaded(state), times, tls);
        // Connections are taken in during the drain, so that `/ready` can say what is going on.
        let left = tokio::select! {
            () = hall.receive(&listener) => Duration::ZERO,
            left = async {
                shutdown.await;
                wind_down(&drain, deadline).await
            } => left,
        };
        drop(listener);
        // The work is over, but an answer in one piece, or the end of a stream, may still lie in our buffers.
        hall.close(left.min(times.send).max(CLOSING)).await;
    }
}

/// Refuses new work, waits for running work until `deadline`, then ends it. Returns what is left of the time.
async fn wind_down(drain: &Drain, deadline: Duration) -> Duration {
    let begun = Instant::now();
    drain.advance(Phase::Draining);
    tracing::info!(running = drain.running(), seconds = deadline.as_secs_f64(), "draining");
    if tokio::time::timeout(deadline, drain.idle()).await.is_err() {
        tracing::warn!(running = drain.running(), "the drain's deadline has passed");
        drain.advance(Phase::Expired);
        if tokio::time::timeout(LAST_WORDS, drain.idle()).await.is_err() {
            tracing::warn!(running = drain.running(), "some clients did not take their last event");
        }
    }
    deadline.saturating_sub(begun.elapsed())
}
