//! Server-sent events: serialization of frames, keep-alive comments, and errors at the end of a stream.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use serde::Serialize;

use super::drain::{Drain, DrainPhase};
use super::error::{ApiError, Code};

/// Maximum number of ready events in one frame; each stays a message of its own.
pub(crate) const READY: usize = 64;

/// Buffer of messages, sent as one frame.
#[derive(Debug, Default)]
pub(crate) struct Frame(Vec<u8>);

impl Frame {
    /// Adds `data: <json>`.
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        self.message(None, value);
    }

    /// Adds `event: <name>` and `data: <json>`.
    pub(crate) fn event(&mut self, name: &str, value: &impl Serialize) {
        self.message(Some(name), value);
    }

    /// Adds `id: <number>`, `event: <name>` and `data: <json>`.
    pub(crate) fn numbered(&mut self, number: u64, name: &str, value: &impl Serialize) {
        let start = self.0.len();
        self.0.extend_from_slice(format!("id: {number}\n").as_bytes());
        let before = self.0.len();
        self.message(Some(name), value);
        if self.0.len() == before {
            // The message could not be serialized, so its number must not be attached to the next one.
            self.0.truncate(start);
        }
    }

    /// Adds the message `[DONE]`, which ends a completion stream.
    pub(crate) fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Adds an error message in place of the remaining messages.
    pub(crate) fn error(&mut self, error: &ApiError) {
        self.data(&error.body());
    }

    /// Adds an error message with an event name, for streams whose events have names.
    pub(crate) fn named_error(&mut self, error: &ApiError) {
        self.event("error", &error.body());
    }

    /// Takes the buffered bytes.
    pub(crate) fn take(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.0))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a message. JSON from `serde_json` contains no line break, so one `data:` line is enough. If serialization
    /// fails, the partial message is removed, so clients never see a broken line.
    fn message(&mut self, name: Option<&str>, value: &impl Serialize) {
        let start = self.0.len();
        if let Some(name) = name {
            self.0.extend_from_slice(b"event: ");
            self.0.extend_from_slice(name.as_bytes());
            self.0.push(b'\n');
        }
        self.0.extend_from_slice(b"data: ");
        match serde_json::to_writer(&mut self.0, value) {
            Ok(()) => self.0.extend_from_slice(b"\n\n"),
            Err(error) => {
                tracing::error!(%error, "an event could not be serialized");
                self.0.truncate(start);
            }
        }
    }
}

/// Builds an event stream response from `frames`.
///
/// The body itself drives the work behind `frames`: when the client disconnects, the body is dropped, and the work with
/// it. After a silence of `ping`, a comment is sent. If the drain expires or the work panics, `last` writes an error in
/// place of the rest.
pub(crate) fn respond(
    frames: impl Stream<Item = Bytes> + Send + 'static,
    ping: Duration,
    drain: Drain,
    last: impl Fn(&mut Frame, &ApiError) + Send + 'static,
) -> Response {
    let body = async_stream::stream! {
        let mut frames = pin!(AssertUnwindSafe(frames).catch_unwind());
        let mut expired = pin!(drain.reached(DrainPhase::Expired));
        loop {
            tokio::select! {
                // The drain comes first, so a stream that is always ready ends as well.
                biased;
                () = &mut expired => {
                    let mut frame = Frame::default();
                    last(&mut frame, &ApiError::new(Code::Draining, "the server shut down before this stream was finished"));
                    yield frame.take();
                    break;
                }
                // Comments keep idle connections open through proxies.
                frame = tokio::time::timeout(ping, frames.next()) => match frame {
                    Ok(Some(Ok(frame))) => yield frame,
                    Ok(Some(Err(_))) => {
                        let mut frame = Frame::default();
                        last(&mut frame, &ApiError::new(Code::Internal, "this stream ran into a bug in the server"));
                        yield frame.take();
                        break;
                    }
                    Ok(None) => break,
                    Err(_) => yield Bytes::from_static(b": ping\n\n"),
                },
            }
        }
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Asks reverse proxies (nginx) not to buffer the stream.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(body.map(Ok::<_, Infallible>))).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;
    use proptest::prelude::*;
    use tokio::sync::Notify;

    async fn text(response: Response) -> String {
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn silence_is_filled_with_comments() {
        let silence = Arc::new(Notify::new());
        let over = Arc::clone(&silence);
        let frames = async_stream::stream! {
            over.notified().await;
            let mut frame = Frame::default();
            frame.event("done", &1);
            yield frame.take();
        };
        let response = respond(frames, Duration::from_millis(40), Drain::default(), Frame::error);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut parts = response.into_body().into_data_stream();
        assert_eq!(parts.next().await.unwrap().unwrap(), ": ping\n\n");
        silence.notify_one();
        let mut text = String::new();
        while let Some(part) = parts.next().await {
            text += std::str::from_utf8(&part.unwrap()).unwrap();
        }
        let pings = text.strip_suffix("event: done\ndata: 1\n\n").unwrap();
        assert!(pings.replace(": ping\n\n", "").is_empty(), "{text}");
    }

    #[tokio::test]
    async fn a_panic_is_told_in_the_place_of_the_rest() {
        let frames = async_stream::stream! {
            yield Bytes::from_static(b"data: 1\n\n");
            std::panic::panic_any("on purpose");
        };
        let text = text(respond(frames, Duration::from_secs(15), Drain::default(), Frame::error)).await;
        let error = text.strip_prefix("data: 1\n\ndata: ").unwrap();
        assert!(error.contains("internal_error") && error.ends_with("\n\n"), "{text}");
    }

    #[tokio::test]
    async fn an_expired_drain_ends_the_stream_with_an_error() {
        let drain = Drain::default();
        let response = respond(futures::stream::pending(), Duration::from_secs(15), drain.clone(), Frame::error);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drain.advance(DrainPhase::Expired);
        });
        let text = text(response).await;
        assert!(text.starts_with("data: {\"error\":{\"message\":\"the server shut down"), "{text}");
        assert!(!text.contains("[DONE]"));
    }

    proptest! {
        #[test]
        fn any_text_stays_one_line(text in "\\PC*[\r\n\u{2028}\u{0}]*\\PC*") {
            let mut frame = Frame::default();
            frame.data(&text);
            let bytes = frame.take();
            let line = std::str::from_utf8(&bytes).unwrap();
            let json = line.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
            prop_assert!(!json.contains(['\n', '\r']));
            prop_assert_eq!(serde_json::from_str::<String>(json).unwrap(), text);
        }
    }
}
