//! What a reader of a resumable stream gets.

use std::sync::Arc;

use axum::body::Bytes;

use super::stream::Stream;
use crate::api::error::ApiError;
use crate::api::sse;

/// A reader's hold on a stream; dropped, it leaves the stream to others.
#[derive(Debug)]
pub(crate) struct Reading {
    stream: Arc<Stream>,
    reader: u64,
    /// The last event it has.
    at: u64,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.stream.detach(self.reader);
    }
}

/// Begins to read after event number `after`. None where the stream is over and all of it was read.
///
/// # Errors
/// 400, 404 or 410 when the rest of it cannot be had.
pub(crate) fn read(stream: Arc<Stream>, after: u64) -> Result<Option<Reading>, ApiError> {
    let reader = stream.attach(after)?;
    Ok(reader.map(|reader| Reading { stream, reader, at: after }))
}

impl Reading {
    /// The rest of the events as they come, until the stream is over or another reader takes it.
    pub(crate) fn frames(mut self) -> impl futures::Stream<Item = Bytes> + Send {
        async_stream::stream! {
            while let Some(frame) = self.next().await {
                yield frame;
            }
        }
    }

    /// The next events that are there, together.
    async fn next(&mut self) -> Option<Bytes> {
        let (reader, at) = (Some(self.reader), self.at);
        let mut states = self.stream.state.subscribe();
        let ready = states.wait_for(|state| state.reader != reader || state.log.last() > at || state.over);
        if ready.await.ok()?.reader != reader {
            return None;
        }
        let mut taken = None;
        // What is taken counts as sent and may make way for more: no reader may do that to the one that came after it.
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
