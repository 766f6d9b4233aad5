//! Response body polled inside the span of its request. A panic ends only that body.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use axum::body::{Body, BodyDataStream, Bytes};
use futures::{Stream, StreamExt, stream};
use tracing::Span;

/// Polls `body` inside `span`, and keeps `kept` alive until the body is sent or dropped.
///
/// An uncaught panic aborts the body with an error, so the client sees an incomplete response instead of one that
/// looks complete.
pub(super) fn guard<T: Send + 'static>(body: Body, span: Span, kept: T) -> Body {
    Body::from_stream(guarded(body.into_data_stream(), span, kept))
}

fn guarded<T: Send + 'static>(
    body: BodyDataStream,
    span: Span,
    kept: T,
) -> impl Stream<Item = Result<Bytes, axum::Error>> {
    let mut held = Some((Inside { body: Some(body), span }, kept));
    stream::poll_fn(move |context| {
        let Some((inside, _)) = &mut held else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| inside.poll(context)));
        let item = polled.unwrap_or_else(|_| {
            // The panic hook has already printed the message and the location.
            Poll::Ready(Some(Err(axum::Error::new("this answer ran into a bug in the server"))))
        });
        if matches!(item, Poll::Ready(None | Some(Err(_)))) {
            // Ends the work of the request now, even if the stream itself is dropped later.
            held = None;
        }
        item
    })
}

/// Body and its span. The body is also dropped inside the span, because ending a request's work may log.
struct Inside {
    body: Option<BodyDataStream>,
    span: Span,
}

impl Inside {
    fn poll(&mut self, context: &mut std::task::Context<'_>) -> Poll<Option<Result<Bytes, axum::Error>>> {
        let _entered = self.span.enter();
        self.body.as_mut().map_or(Poll::Ready(None), |body| body.poll_next_unpin(context))
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
}
