//! Listening, and going down in good order.

mod signal;

use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use crate::api::drain::{Drain, Phase};
use crate::api::{self, AppState};

pub use signal::stop_signal;

/// What streams get, after the drain's deadline, to send their last event.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What connections get to close once no work is left.
const CLOSING: Duration = Duration::from_millis(500);

/// A server that listens already and answers once it runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    state: AppState,
}

impl Server {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// What the operating system says, such as that the port is taken.
    pub async fn bind(address: SocketAddr, state: AppState) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, state })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown` completes and the drain that follows is over: readiness turns red and new work is
    /// refused at once, running work goes on until the configured deadline, what then is left gets an error.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
        let Self { listener, state, .. } = self;
        let drain = state.drain.clone();
        let deadline = state.config.drain;
        let router = api::router(state);
        // A token is a small write of its own: without this the kernel would hold it back for the one before it.
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "nodelay was refused");
            }
        });
        let (closing, closed) = tokio::sync::oneshot::channel::<()>();
        let serve = axum::serve(listener, router).with_graceful_shutdown(async {
            // The sender is dropped, not used: both mean that the connections may close.
            let _ = closed.await;
        });
        let serve = std::pin::pin!(serve.into_future());
        let drained = std::pin::pin!(async {
            shutdown.await;
            wind_down(&drain, deadline).await;
        });
        // The listener stays open during the drain, so that `/ready` can say what is going on.
        match futures::future::select(serve, drained).await {
            futures::future::Either::Left((ended, _)) => ended,
            futures::future::Either::Right(((), serve)) => {
                drop(closing);
                tokio::time::timeout(CLOSING, serve).await.unwrap_or(Ok(()))
            }
        }
    }
}

/// Refuses new work, waits for running work until `deadline`, then ends it.
async fn wind_down(drain: &Drain, deadline: Duration) {
    drain.advance(Phase::Draining);
    tracing::info!(running = drain.running(), seconds = deadline.as_secs_f64(), "draining");
    if tokio::time::timeout(deadline, drain.idle()).await.is_err() {
        tracing::warn!(running = drain.running(), "the drain's deadline has passed");
        drain.advance(Phase::Expired);
        if tokio::time::timeout(LAST_WORDS, drain.idle()).await.is_err() {
            tracing::warn!(running = drain.running(), "some clients did not take their last event");
        }
    }
}
