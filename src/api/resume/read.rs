//! Reader of a resumable stream.

use std::sync::Arc;

use axum::body::Bytes;

use super::stream::ResumableStream;
use crate::api::error::ApiError;
use crate::api::sse;

/// Reader attached to a stream. Dropping it detaches it.
#[derive(Debug)]
pub(crate) struct StreamReader {
    stream: Arc<ResumableStream>,
    reader: u64,
    /// Number of the last event received.
    at: u64,
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.stream.detach(self.reader);
    }
}

/// Attaches a reader that has received the events up to number `after`. Returns `None` if the stream has ended and all
/// of it was read.
///
/// # Errors
/// 400, 404 or 410 if the remaining events are not available.
pub(crate) fn read(stream: Arc<ResumableStream>, after: u64) -> Result<Option<StreamReader>, ApiError> {
    let reader = stream.attach(after)?;
    Ok(reader.map(|reader| StreamReader { stream, reader, at: after }))
}

impl StreamReader {
    /// Streams the remaining events until the stream ends or another reader replaces this one.
    pub(crate) fn frames(mut self) -> impl futures::Stream<Item = Bytes> + Send {
        async_stream::stream! {
            while let Some(frame) = self.next().await {
                yield frame;
            }
        }
    }

    /// Returns the events that are ready, in one frame.
    async fn next(&mut self) -> Option<Bytes> {
        let reader = Some(self.reader);
        let at = self.at;
        let mut states = self.stream.state.subscribe();
        let ready = states.wait_for(|state| state.reader != reader || state.log.last() > at || state.over);
        if ready.await.ok()?.reader != reader {
            return None;
        }
        let mut taken = None;
        // Taking events counts them as sent and may evict older ones, which a replaced reader must not do to its
        // successor.
        self.stream.state.send_modify(|state| {
            if state.reader == reader {
                taken = Some(state.log.take(at, sse::READY));
            }
        });
        let (frames, last) = taken?;
        self.at = last;
        (!frames.is_empty()).then(|| Bytes::from(frames))
    }
}
