//! Response body polled inside the span of its request, in pieces. A panic ends only that body.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tracing::Span;

/// Maximum size of a piece of a body, in bytes. The connection takes one at a time, so a large body is not over before
/// its client has read most of it.
const PIECE: usize = 64 << 10;

/// Polls `body` inside `span`, and keeps `kept` alive until the body is sent or dropped.
///
/// An uncaught panic aborts the body with an error, so the client sees an incomplete response instead of one that
/// looks complete.
pub(super) fn guard<T: Send + Unpin + 'static>(body: Body, span: Span, kept: T) -> Body {
    let inside = Inside { body: Some(body), rest: Bytes::new(), span };
    Body::new(GuardedBody { held: Some((inside, kept)) })
}

/// Body, with what is kept until it ends. `None` after its end.
struct GuardedBody<T> {
    held: Option<(Inside, T)>,
}

impl<T: Unpin> HttpBody for GuardedBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let guarded = self.get_mut();
        let Some((inside, _)) = &mut guarded.held else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| inside.poll(context)));
        let frame = polled.unwrap_or_else(|_| {
            // The panic hook has already printed the message and the location.
            Poll::Ready(Some(Err(axum::Error::new("this answer ran into a bug in the server"))))
        });
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            // Ends the work of the request now, even if the body itself is dropped later.
            guarded.held = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.held.as_ref().is_none_or(|(inside, _)| inside.is_over())
    }

    fn size_hint(&self) -> SizeHint {
        self.held.as_ref().map_or_else(|| SizeHint::with_exact(0), |(inside, _)| inside.size_hint())
    }
}

/// Body and its span. The body is also dropped inside the span, because ending a request's work may log.
struct Inside {
    body: Option<Body>,
    /// Data that was polled and not yet passed on.
    rest: Bytes,
    span: Span,
}

impl Inside {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let _entered = self.span.enter();
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            let Poll::Ready(polled) = Pin::new(body).poll_frame(context) else { return Poll::Pending };
            match polled.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_over(&self) -> bool {
        self.rest.is_empty() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    /// Returns the bounds of the size of what is still to be sent.
    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        body + SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        self.body = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;
    use std::sync::Arc;

    use futures::{StreamExt, stream};

    use super::*;

    #[tokio::test]
    async fn a_panic_breaks_the_body_off_and_lets_go_of_what_was_kept() {
        let kept = Arc::new(());
        let mut chunks = 0;
        let body = Body::from_stream(stream::poll_fn(move |_| {
            chunks += 1;
            assert!(chunks < 3, "on purpose");
            Poll::Ready(Some(Ok::<_, Infallible>(Bytes::from_static(b"x"))))
        }));
        let mut body = guard(body, Span::none(), Arc::clone(&kept)).into_data_stream();
        assert!(body.next().await.unwrap().is_ok() && body.next().await.unwrap().is_ok());
        assert_eq!(Arc::strong_count(&kept), 2);
        assert!(body.next().await.unwrap().is_err());
        assert_eq!(Arc::strong_count(&kept), 1);
        assert!(body.next().await.is_none());
    }

    #[tokio::test]
    async fn a_whole_body_keeps_its_length_and_is_sent_in_pieces() {
        let kept = Arc::new(());
        let mut body = guard(Body::from(vec![b'x'; 2 * PIECE + 1]), Span::none(), Arc::clone(&kept));
        for left in [2 * PIECE + 1, PIECE + 1, 1] {
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(left as u64), false));
            let piece = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
            assert_eq!(piece.unwrap().unwrap().into_data().unwrap().len(), left.min(PIECE));
            assert_eq!(Arc::strong_count(&kept), 2);
        }
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        drop(body);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
