//! Timeouts of a connection, depending on what it is doing.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use axum::response::Response as AxumResponse;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::head_scan::HeadScan;
use crate::api::lifetime::Lifetime;
use crate::config::ConnectionConfig;

/// Maximum duration of a stream whose route sets no deadline.
const LONGEST_STREAM: Duration = Duration::from_secs(3600);

/// Timeouts of one connection; clones share them.
///
/// A client that sends a request head one byte at a time, one that keeps an idle connection, and one that does not read
/// its response each run into a timeout of their own. Memory is bounded all along: hyper limits what it reads and
/// buffers, and a body that is not polled produces nothing.
#[derive(Debug, Clone)]
pub(super) struct ConnectionTimer(Arc<TimeoutState>);

#[derive(Debug)]
struct TimeoutState {
    stage: Mutex<ConnectionStage>,
    /// Head of the request that is arriving.
    head: Mutex<HeadScan>,
    times: ConnectionConfig,
    changed: Arc<Notify>,
}

/// Activity of a connection.
#[derive(Debug)]
enum ConnectionStage {
    /// The client is sending the head of a request.
    Head { until: Instant },
    /// The client waits for the response. The request's body may still be arriving; its reader has a timeout of its
    /// own.
    Waiting { lifetime: Lifetime },
    /// The client is receiving the response.
    Sending { lifetime: Lifetime, until: Instant },
    /// The response is complete but partly still in hyper's buffers.
    Flushing { until: Instant },
    /// The connection is idle.
    Idle { until: Instant },
}

impl ConnectionTimer {
    /// Starts the timeouts of a connection. `accepted` is the time since which the first header timeout runs.
    pub(super) fn new(times: ConnectionConfig, accepted: Instant) -> Self {
        let stage = Mutex::new(ConnectionStage::Head { until: accepted + times.header });
        Self(Arc::new(TimeoutState { stage, head: Mutex::default(), times, changed: Arc::default() }))
    }

    fn stage(&self) -> MutexGuard<'_, ConnectionStage> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn head(&self) -> MutexGuard<'_, HeadScan> {
        self.0.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, stage: ConnectionStage) {
        *self.stage() = stage;
        // Stores a permit, so a change between the check and the wait is not lost.
        self.0.changed.notify_one();
    }

    /// Handles received bytes: the first ones on an idle connection begin a request head.
    fn received(&self, bytes: &[u8]) {
        let mut stage = self.stage();
        // A pipelined head, which arrives before its turn, is not looked at: hyper closes the connection after it.
        if matches!(*stage, ConnectionStage::Idle { .. } | ConnectionStage::Head { .. }) {
            // The stage stays locked while the head is locked. The two are never locked in the other order.
            self.head().feed(bytes);
        }
        // Further bytes of a head must not extend its timeout.
        if matches!(*stage, ConnectionStage::Idle { .. }) {
            *stage = ConnectionStage::Head { until: Instant::now() + self.0.times.header };
            drop(stage);
            self.0.changed.notify_one();
        }
    }

    /// Handles the end of the response body, which may still have to be flushed.
    fn response_finished(&self) {
        let mut stage = self.stage();
        // A deadline of the response covers its flush. Without one, the flush has the time of a whole response.
        let end = if let ConnectionStage::Sending { lifetime, .. } = &*stage { lifetime.end() } else { None };
        *stage = ConnectionStage::Flushing { until: end.unwrap_or_else(|| Instant::now() + self.0.times.send) };
        drop(stage);
        self.0.changed.notify_one();
    }

    /// Handles the flush of everything that was written.
    fn flushed(&self) {
        // hyper flushes often; only a flush after the end of a body makes the connection idle.
        if matches!(*self.stage(), ConnectionStage::Flushing { .. }) {
            self.enter(ConnectionStage::Idle { until: Instant::now() + self.0.times.idle });
        }
    }

    /// Handles a complete request head. Returns the lifetime through which the handler sets the request's deadline.
    pub(super) fn request_started(&self) -> Lifetime {
        let lifetime = Lifetime::notifying(Arc::clone(&self.0.changed));
        self.enter(ConnectionStage::Waiting { lifetime: lifetime.clone() });
        lifetime
    }

    /// Returns `true` if the head that has just arrived states the length of its body twice, and forgets it.
    pub(super) fn take_contradiction(&self) -> bool {
        std::mem::take(&mut *self.head()).is_contradictory()
    }

    /// Handles the response of the handler, which is sent until its body is dropped.
    pub(super) fn response_started(&self, answer: AxumResponse, lifetime: Lifetime) -> Response<TimedBody> {
        let whole = answer.body().size_hint().exact().is_some();
        // Streams have deadlines of their own, which precede this one.
        let until = Instant::now() + if whole { self.0.times.send } else { LONGEST_STREAM };
        self.enter(ConnectionStage::Sending { lifetime, until });
        answer.map(|body| TimedBody { body, watch: self.clone() })
    }

    /// Returns the deadline of the current stage. `None` while a handler works that set no deadline.
    fn deadline(&self) -> Option<Instant> {
        match &*self.stage() {
            ConnectionStage::Head { until } | ConnectionStage::Flushing { until } | ConnectionStage::Idle { until } => {
                Some(*until)
            }
            ConnectionStage::Waiting { lifetime } => lifetime.end(),
            ConnectionStage::Sending { lifetime, until } => Some(lifetime.end().unwrap_or(*until)),
        }
    }

    /// Waits until a deadline has passed.
    pub(super) async fn expired(&self) {
        loop {
            let Some(deadline) = self.deadline() else {
                self.0.changed.notified().await;
                continue;
            };
            if deadline <= Instant::now() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => {}
                () = self.0.changed.notified() => {}
            }
        }
    }

    /// Describes the current stage, for the log.
    pub(super) fn stage_name(&self) -> &'static str {
        match *self.stage() {
            ConnectionStage::Head { .. } => "sending the head of a request",
            ConnectionStage::Waiting { .. } => "waiting for a response",
            ConnectionStage::Sending { .. } | ConnectionStage::Flushing { .. } => "receiving a response",
            ConnectionStage::Idle { .. } => "idle",
        }
    }
}

/// Response body. It is dropped once it was sent or the client has disconnected.
#[derive(Debug)]
pub(super) struct TimedBody {
    body: Body,
    watch: ConnectionTimer,
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TimedBody {
    fn drop(&mut self) {
        self.watch.response_finished();
    }
}

/// Connection stream that reports received bytes and completed flushes.
#[derive(Debug)]
pub(super) struct TimedStream<S> {
    stream: S,
    watch: ConnectionTimer,
}

impl<S> TimedStream<S> {
    pub(super) fn new(stream: S, watch: ConnectionTimer) -> Self {
        Self { stream, watch }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(bytes) = buffer.filled().get(before..).filter(|bytes| !bytes.is_empty()) {
            self.watch.received(bytes);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes once its own buffers are empty.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.watch.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> ConnectionConfig {
        let seconds = Duration::from_secs;
        ConnectionConfig {
            header: seconds(100),
            body: seconds(100),
            send: seconds(2000),
            idle: seconds(30_000),
            ..ConnectionConfig::default()
        }
    }

    /// Returns the time left in the current stage, rounded to hundreds of seconds: a busy machine takes some of it.
    fn left(watch: &ConnectionTimer) -> Option<u64> {
        let left = watch.deadline()?.saturating_duration_since(Instant::now());
        Some((left.as_secs_f64() / 100.0).round() as u64)
    }

    fn whole() -> AxumResponse {
        AxumResponse::new(Body::from("whole"))
    }

    fn stream() -> AxumResponse {
        AxumResponse::new(Body::from_stream(futures::stream::pending::<Result<Bytes, std::convert::Infallible>>()))
    }

    #[test]
    fn each_stage_has_its_own_time() {
        let watch = ConnectionTimer::new(times(), Instant::now());
        assert_eq!(left(&watch), Some(1), "a connection that says nothing");
        let lifetime = watch.request_started();
        assert_eq!(left(&watch), None, "work is not broken off");
        let answer = watch.response_started(whole(), lifetime);
        assert_eq!(left(&watch), Some(20), "an answer that is not taken");
        drop(answer);
        assert_eq!(left(&watch), Some(20), "an answer that lies in buffers");
        watch.flushed();
        assert_eq!(left(&watch), Some(300), "a connection that is kept");
        watch.received(b"G");
        assert_eq!(left(&watch), Some(1), "a second head that does not come");
        let lifetime = watch.request_started();
        let _answer = watch.response_started(stream(), lifetime);
        assert_eq!(left(&watch), Some(36), "a stream of unknown length");
    }

    #[test]
    fn bytes_of_a_head_do_not_make_its_time_longer() {
        let watch = ConnectionTimer::new(times(), Instant::now());
        let deadline = watch.deadline();
        watch.received(b"G");
        assert_eq!(watch.deadline(), deadline);
    }

    #[test]
    fn work_ends_when_it_was_said_to_however_it_is_taken() {
        let watch = ConnectionTimer::new(times(), Instant::now());
        let lifetime = watch.request_started();
        lifetime.end_by(Instant::now() + Duration::from_secs(700));
        lifetime.end_by(Instant::now() + Duration::from_secs(90_000));
        assert_eq!(left(&watch), Some(7), "the first word counts");
        let _answer = watch.response_started(stream(), lifetime);
        assert_eq!(left(&watch), Some(7));
    }

    #[tokio::test]
    async fn an_end_is_heard_while_there_was_none() {
        let watch = ConnectionTimer::new(times(), Instant::now());
        let lifetime = watch.request_started();
        let over = tokio::spawn({
            let watch = watch.clone();
            async move { watch.expired().await }
        });
        tokio::task::yield_now().await;
        assert!(!over.is_finished());
        lifetime.end_by(Instant::now());
        assert!(tokio::time::timeout(Duration::from_secs(60), over).await.is_ok(), "it went on");
    }
}
