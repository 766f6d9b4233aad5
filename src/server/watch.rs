//! What a connection is doing, and until when it may.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use axum::response::Response as Answer;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::lifetime::Lifetime;
use crate::config::ConnectionConfig;

/// The longest stream of a route that does not say how long its work may take.
const LONGEST_STREAM: Duration = Duration::from_secs(3600);

/// Looks after one connection; clones share it.
///
/// A client that sends its head a byte at a time, one that keeps its connection for nothing and one that does not take
/// its answer each run into a time of their own. What it holds is bounded all along: hyper reads and buffers no more than
/// it was told to, and a body that is not asked for more makes no more.
#[derive(Debug, Clone)]
pub(super) struct Watch(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stage: Mutex<Stage>,
    times: ConnectionConfig,
    changed: Arc<Notify>,
}

/// What a connection is doing.
#[derive(Debug)]
enum Stage {
    /// Sends the head of a request.
    Head { until: Instant },
    /// Waits for its answer; the body may still be on its way, which whoever reads it sees to.
    Waiting { lifetime: Lifetime },
    /// Takes its answer.
    Taking { lifetime: Lifetime, until: Instant },
    /// Takes what is left of it, which was made: it lies in hyper's buffers, whole if it came in one piece.
    Rest { until: Instant },
    /// Is kept open.
    Idle { until: Instant },
}

impl Watch {
    /// Looks after a connection that was `accepted` then: what it has taken since is gone from the time of its first head.
    pub(super) fn new(times: ConnectionConfig, accepted: Instant) -> Self {
        let stage = Mutex::new(Stage::Head { until: accepted + times.header });
        Self(Arc::new(Inner { stage, times, changed: Arc::default() }))
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        // Nothing in here can panic halfway through a change.
        self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, stage: Stage) {
        *self.stage() = stage;
        self.0.changed.notify_one();
    }

    /// Bytes have come: the first ones after a pause begin another head.
    fn received(&self) {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Idle { .. }) {
            *stage = Stage::Head { until: Instant::now() + self.0.times.header };
            drop(stage);
            self.0.changed.notify_one();
        }
    }

    /// The answer was made, and is on its way until everything that was written is out.
    fn made(&self) {
        let mut stage = self.stage();
        let end = if let Stage::Taking { lifetime, .. } = &*stage { lifetime.end() } else { None };
        *stage = Stage::Rest { until: end.unwrap_or_else(|| Instant::now() + self.0.times.send) };
        drop(stage);
        self.0.changed.notify_one();
    }

    /// Everything that was written is out.
    fn flushed(&self) {
        if matches!(*self.stage(), Stage::Rest { .. }) {
            self.enter(Stage::Idle { until: Instant::now() + self.0.times.idle });
        }
    }

    /// A head has come. What is returned is told until when the request may go on.
    pub(super) fn asked(&self) -> Lifetime {
        let lifetime = Lifetime::telling(Arc::clone(&self.0.changed));
        self.enter(Stage::Waiting { lifetime: lifetime.clone() });
        lifetime
    }

    /// The answer is there, and is on its way until its body has been taken or given up.
    pub(super) fn answered(&self, answer: Answer, lifetime: Lifetime) -> Response<Taken> {
        let whole = answer.body().size_hint().exact().is_some();
        let until = Instant::now() + if whole { self.0.times.send } else { LONGEST_STREAM };
        self.enter(Stage::Taking { lifetime, until });
        answer.map(|body| Taken { body, watch: self.clone() })
    }

    /// Until when the connection may go on as it is; `None` while it waits for work without a bound of its own.
    fn deadline(&self) -> Option<Instant> {
        match &*self.stage() {
            Stage::Head { until } | Stage::Rest { until } | Stage::Idle { until } => Some(*until),
            Stage::Waiting { lifetime } => lifetime.end(),
            Stage::Taking { lifetime, until } => Some(lifetime.end().unwrap_or(*until)),
        }
    }

    /// Returns when a time is up.
    pub(super) async fn over(&self) {
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

    /// What it was doing, for the log.
    pub(super) fn doing(&self) -> &'static str {
        match *self.stage() {
            Stage::Head { .. } => "sending the head of a request",
            Stage::Waiting { .. } => "waiting for an answer",
            Stage::Taking { .. } | Stage::Rest { .. } => "taking an answer",
            Stage::Idle { .. } => "idle",
        }
    }
}

/// The body of an answer; when it is dropped, all of it was made, or it was given up.
#[derive(Debug)]
pub(super) struct Taken {
    body: Body,
    watch: Watch,
}

impl HttpBody for Taken {
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

impl Drop for Taken {
    fn drop(&mut self) {
        self.watch.made();
    }
}

/// A stream that tells its watch when bytes come, and when all are out.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    watch: Watch,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, watch: Watch) -> Self {
        Self { stream, watch }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.watch.received();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
        // hyper flushes once nothing is left in its own buffers.
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
        ConnectionConfig { most: 1, header: seconds(1), body: seconds(1), send: seconds(20), idle: seconds(300) }
    }

    /// Seconds that are left of the present stage.
    fn left(watch: &Watch) -> Option<u64> {
        let left = watch.deadline()?.saturating_duration_since(Instant::now());
        Some(left.as_secs_f64().round() as u64)
    }

    fn whole() -> Answer {
        Answer::new(Body::from("whole"))
    }

    fn stream() -> Answer {
        Answer::new(Body::from_stream(futures::stream::pending::<Result<Bytes, std::convert::Infallible>>()))
    }

    #[test]
    fn each_stage_has_its_own_time() {
        let watch = Watch::new(times(), Instant::now());
        assert_eq!(left(&watch), Some(1), "a connection that says nothing");
        let lifetime = watch.asked();
        assert_eq!(left(&watch), None, "work is not broken off");
        let answer = watch.answered(whole(), lifetime);
        assert_eq!(left(&watch), Some(20), "an answer that is not taken");
        drop(answer);
        assert_eq!(left(&watch), Some(20), "an answer that lies in buffers");
        watch.flushed();
        assert_eq!(left(&watch), Some(300), "a connection that is kept");
        watch.received();
        assert_eq!(left(&watch), Some(1), "a second head that does not come");
        let lifetime = watch.asked();
        let _answer = watch.answered(stream(), lifetime);
        assert_eq!(left(&watch), Some(3600), "a stream of unknown length");
    }

    #[test]
    fn bytes_of_a_head_do_not_make_its_time_longer() {
        let watch = Watch::new(times(), Instant::now());
        let deadline = watch.deadline();
        watch.received();
        assert_eq!(watch.deadline(), deadline);
    }

    #[test]
    fn work_ends_when_it_was_said_to_however_it_is_taken() {
        let watch = Watch::new(times(), Instant::now());
        let lifetime = watch.asked();
        lifetime.end_by(Instant::now() + Duration::from_secs(7));
        lifetime.end_by(Instant::now() + Duration::from_secs(900));
        assert_eq!(left(&watch), Some(7), "the first word counts");
        let _answer = watch.answered(stream(), lifetime);
        assert_eq!(left(&watch), Some(7));
    }

    #[tokio::test]
    async fn an_end_is_heard_while_there_was_none() {
        let watch = Watch::new(times(), Instant::now());
        let lifetime = watch.asked();
        let over = tokio::spawn({
            let watch = watch.clone();
            async move { watch.over().await }
        });
        tokio::task::yield_now().await;
        assert!(!over.is_finished());
        lifetime.end_by(Instant::now());
        assert!(tokio::time::timeout(Duration::from_secs(10), over).await.is_ok(), "it went on");
    }
}
