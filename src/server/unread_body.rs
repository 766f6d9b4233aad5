//! Request bodies that their handlers do not read to the end, as those of refused requests.
//!
//! hyper closes the connection after the response to such a request. A client that is not told so sends its next
//! request on that connection, and fails.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// Maximum size of a rest that is read in order to keep the connection, in bytes.
const MAX_REST: u64 = 64 << 10;

/// Maximum time in which a rest has to arrive: enough for one that is on its way already.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Rest of a request's body, shared with its [`TrackedBody`].
#[derive(Debug)]
pub(super) struct UnreadBody<B>(Arc<Mutex<BodyRest<B>>>);

#[derive(Debug)]
enum BodyRest<B> {
    /// The body was read to its end, or its handler still has it.
    None,
    /// The handler has dropped the body before its end.
    Unread(B),
    /// The body has broken off.
    Broken,
}

impl<B> Default for UnreadBody<B> {
    fn default() -> Self {
        UnreadBody(Arc::new(Mutex::new(BodyRest::None)))
    }
}

impl<B> UnreadBody<B> {
    /// Returns the body for the handler. Its rest is here once the handler has dropped it.
    pub(super) fn track(&self, body: B) -> TrackedBody<B>
    where
        B: HttpBody,
    {
        TrackedBody { body: Some(body), rest: UnreadBody(Arc::clone(&self.0)) }
    }

    /// Returns `true` if there is no rest.
    pub(super) fn is_empty(&self) -> bool {
        matches!(*self.lock(), BodyRest::None)
    }

    fn lock(&self) -> MutexGuard<'_, BodyRest<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> UnreadBody<B> {
    /// Reads the rest if it is small and arrives soon. Returns `true` if the body is then read to its end.
    pub(super) async fn read(self) -> bool {
        let rest = std::mem::replace(&mut *self.lock(), BodyRest::None);
        match rest {
            BodyRest::None => true,
            BodyRest::Unread(body) if body.size_hint().lower() <= MAX_REST => {
                tokio::time::timeout(TIMEOUT, read_to_end(body)).await.unwrap_or(false)
            }
            BodyRest::Unread(_) | BodyRest::Broken => false,
        }
    }
}

/// Reads a body. Returns `false` if it breaks off or is too large.
async fn read_to_end<B: HttpBody<Data = Bytes> + Unpin>(mut body: B) -> bool {
    let mut left = MAX_REST;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(frame) = frame else { return false };
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        let Some(rest) = left.checked_sub(bytes) else { return false };
        left = rest;
    }
    true
}

/// Request body that leaves its rest in an [`UnreadBody`] when it is dropped.
#[derive(Debug)]
pub(super) struct TrackedBody<B: HttpBody> {
    /// `None` once the body has ended.
    body: Option<B>,
    rest: UnreadBody<B>,
}

impl<B: HttpBody + Unpin> HttpBody for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let tracked = self.get_mut();
        let Some(body) = &mut tracked.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        match frame {
            Poll::Ready(None) => tracked.body = None,
            Poll::Ready(Some(Err(_))) => {
                tracked.body = None;
                *tracked.rest.lock() = BodyRest::Broken;
            }
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl<B: HttpBody> Drop for TrackedBody<B> {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.rest.lock() = BodyRest::Unread(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::{StreamExt, stream};

    use super::*;

    /// Returns `true` if the connection is kept after a handler has read `frames` frames of a body.
    async fn is_kept(body: Body, frames: usize) -> bool {
        let unread = UnreadBody::default();
        let mut tracked = unread.track(body);
        for _ in 0..frames {
            let _ = poll_fn(|context| Pin::new(&mut tracked).poll_frame(context)).await;
        }
        drop(tracked);
        unread.read().await
    }

    fn chunks(sizes: Vec<usize>) -> Body {
        Body::from_stream(stream::iter(sizes).map(|size| Ok::<_, std::io::Error>(Bytes::from(vec![0; size]))))
    }

    #[tokio::test]
    async fn a_connection_is_kept_if_the_body_was_read_or_its_rest_is_small() {
        assert!(is_kept(Body::empty(), 0).await);
        assert!(is_kept(Body::from("small"), 0).await);
        assert!(is_kept(chunks(vec![1 << 20, 1, 2]), 1).await);
        assert!(is_kept(Body::from(vec![0; 1 << 20]), 2).await, "a large body that was read");
        assert!(!is_kept(Body::from(vec![0; 1 << 20]), 0).await);
        assert!(!is_kept(chunks(vec![40 << 10, 40 << 10]), 0).await);
    }

    #[tokio::test]
    async fn a_connection_closes_after_a_body_that_breaks_off_or_does_not_come() {
        let broken = || Body::from_stream(stream::iter([Ok(Bytes::from("a")), Err(std::io::Error::other("gone"))]));
        assert!(!is_kept(broken(), 0).await);
        assert!(!is_kept(broken(), 2).await, "the handler has seen the error");
        assert!(!is_kept(Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>()), 0).await);
    }
}
