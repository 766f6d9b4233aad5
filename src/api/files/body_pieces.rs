//! Body of an upload in small pieces, with a limit for the heads of its parts.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use axum::body::{BodyDataStream, Bytes};
use futures::{Stream, StreamExt};

use crate::api::error::{ApiError, Code};

/// Maximum size of a piece, in bytes.
const PIECE: usize = 8 << 10;

/// Maximum size of the head of a part, and of anything before it that belongs to no part, in bytes.
pub(super) const MAX_HEAD: u64 = 16 << 10;

/// Number of bytes of a body that have arrived, and their limit.
#[derive(Debug, Default)]
pub(super) struct BodyProgress {
    bytes: AtomicU64,
    /// Maximum number of bytes until the next call of [`begin_head`](Self::begin_head) or
    /// [`begin_content`](Self::begin_content).
    limit: AtomicU64,
}

impl BodyProgress {
    /// Returns the number of bytes that have arrived.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Limits the bytes that follow to those of a head.
    pub(super) fn begin_head(&self) {
        self.limit.store(self.bytes() + MAX_HEAD, Relaxed);
    }

    /// Lifts the limit: the parser bounds the contents of parts.
    pub(super) fn begin_content(&self) {
        self.limit.store(u64::MAX, Relaxed);
    }

    fn add(&self, bytes: usize) -> Result<(), ApiError> {
        let arrived = self.bytes.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        if arrived <= self.limit.load(Relaxed) {
            return Ok(());
        }
        let message = format!("the head of a part of the form is larger than the limit of {MAX_HEAD} bytes");
        Err(ApiError::new(Code::RequestTooLarge, message))
    }
}

/// Stream of the pieces of a body.
///
/// The parser of forms collects everything that a stream has ready, and searches all of that again whenever more
/// arrives. It finds one piece at a time here, so it holds little more than one, or than a head.
#[derive(Debug)]
pub(super) struct BodyPieces {
    body: BodyDataStream,
    /// Data that has arrived and is still to be passed on.
    rest: Bytes,
    /// If `true`, the next poll returns no piece, so the parser looks at the one before.
    pauses: bool,
    progress: Arc<BodyProgress>,
}

impl BodyPieces {
    pub(super) fn new(body: BodyDataStream, progress: Arc<BodyProgress>) -> BodyPieces {
        BodyPieces { body, rest: Bytes::new(), pauses: false, progress }
    }
}

impl Stream for BodyPieces {
    type Item = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if mem::take(&mut self.pauses) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.rest.is_empty() {
            match ready!(self.body.poll_next_unpin(context)) {
                Some(data) => self.rest = data?,
                None => return Poll::Ready(None),
            }
        }
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        self.progress.add(length)?;
        self.pauses = true;
        Poll::Ready(Some(Ok(piece)))
    }
}
