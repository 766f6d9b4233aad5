//! Task that serves one connection.

use std::convert::Infallible;
use std::pin::pin;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tower_service::Service;

use super::timeouts::{ConnectionTimer, TimedStream};
use super::unread_body::UnreadBody;
use crate::api::auth::ClientAddress;
use crate::api::error_mapping;
use crate::api::head::ContradictoryLengths;

/// Maximum size of a request's head, and size of the response buffer, in bytes.
const BUFFER: usize = 64 << 10;

/// Stage of the server's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownStage {
    /// The server keeps its connections.
    No,
    /// Each connection closes after its current response; idle ones close at once.
    Answered,
    /// All connections close.
    Now,
}

/// Serves requests of `client` on `stream` until the client disconnects, a timeout of `watch` expires, or the server
/// shuts down.
pub(super) async fn serve<S>(
    stream: S,
    client: ClientAddress,
    router: Router,
    watch: ConnectionTimer,
    mut closing: watch::Receiver<ShutdownStage>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let asked = watch.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let mut router = router.clone();
        let watch = asked.clone();
        async move {
            let contradictory = watch.take_contradiction();
            let lifetime = watch.request_started();
            let unread = UnreadBody::default();
            let is_awaited = request.headers().contains_key(header::EXPECT);
            let mut request = request.map(|body| Body::new(unread.track(body)));
            if contradictory {
                request.extensions_mut().insert(ContradictoryLengths);
            }
            request.extensions_mut().insert(client);
            request.extensions_mut().insert(lifetime.clone());
            let answer = router.call(request).await?;
            // After a head with two lengths, nobody knows where the next request begins.
            let closes = contradictory || answer.headers().contains_key(header::CONNECTION);
            // Reading would ask a client that waits with its body to send it.
            let is_kept = !closes && if is_awaited { unread.is_empty() } else { unread.read().await };
            let answer = if is_kept { answer } else { error_mapping::close_connection(answer).await };
            Ok::<_, Infallible>(watch.response_started(answer, lifetime))
        }
    });
    let io = TokioIo::new(TimedStream::new(stream, watch.clone()));
    // Bounds the memory of a connection whose client does not read.
    let mut connection = pin!(http1::Builder::new().max_buf_size(BUFFER).serve_connection(io, service));
    let mut told = false;
    loop {
        let stage = *closing.borrow_and_update();
        if stage == ShutdownStage::Now {
            return;
        }
        if stage == ShutdownStage::Answered && !told {
            connection.as_mut().graceful_shutdown();
            told = true;
        }
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection failed");
                }
                return;
            }
            () = watch.expired() => {
                tracing::debug!(doing = watch.stage_name(), "connection timed out");
                return;
            }
            changed = closing.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}
