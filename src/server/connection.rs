//! One connection from its first byte to its last.

use std::convert::Infallible;
use std::pin::pin;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tower_service::Service;

use super::watch::{Watch, Watched};

/// Largest head of a request, and what is buffered of an answer, in bytes.
const BUFFER: usize = 64 << 10;

/// How far the server is with closing its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closing {
    /// Not at all.
    No,
    /// Each closes when its request is answered; idle ones at once.
    Answered,
    /// All close.
    Now,
}

/// Answers what comes over `stream` until the client goes, a time of `watch` is up, or the server closes.
pub(super) async fn serve<S>(stream: S, router: Router, watch: Watch, mut closing: watch::Receiver<Closing>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let asked = watch.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (mut router, watch) = (router.clone(), asked.clone());
        async move {
            let lifetime = watch.asked();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(lifetime.clone());
            let answer = router.call(request).await?;
            Ok::<_, Infallible>(watch.answered(answer, lifetime))
        }
    });
    let io = TokioIo::new(Watched::new(stream, watch.clone()));
    let mut connection = pin!(http1::Builder::new().max_buf_size(BUFFER).serve_connection(io, service));
    let mut told = false;
    loop {
        let stage = *closing.borrow_and_update();
        if stage == Closing::Now {
            return;
        }
        if stage == Closing::Answered && !told {
            connection.as_mut().graceful_shutdown();
            told = true;
        }
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = watch.over() => {
                tracing::debug!(doing = watch.doing(), "a connection took too long");
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
