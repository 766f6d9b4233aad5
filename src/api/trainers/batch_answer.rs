//! Answers to a batch of queries, written as the results arrive: memory holds a few results instead of all of them.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use serde::Serialize;
use waymark_index::{AnswerCut, AnswerRoom};

use super::batch::BatchResult;
use crate::api::error::{ApiError, Code};

/// Number of bytes up to which an answer is sent in one piece, so the failure of a query is a proper error. The
/// connection of a longer one is broken off instead, because its status has been sent.
const WHOLE: usize = 1 << 20;

/// Results of the queries of a batch, in order.
pub(super) type BatchResults = BoxStream<'static, Result<BatchResult, ApiError>>;

/// Converts the results of a batch to its answer: an object with the list `result`.
pub(super) struct BatchAnswer<F> {
    /// Converts one result.
    pub(super) item: F,
    /// Result without passages, in JSON, for queries that are left out.
    pub(super) empty: &'static str,
    /// Number of queries.
    pub(super) queries: usize,
    /// Durations of the queries, if the answer has the list `time`. It stays empty unless durations are wanted.
    pub(super) times: Option<bool>,
    /// Maximum size of the answer in bytes.
    pub(super) limit: usize,
}

impl<F, T> BatchAnswer<F>
where
    F: Fn(BatchResult) -> T + Send + Sync + 'static,
    T: Serialize + 'static,
{
    /// Answers with the results of a batch.
    ///
    /// # Errors
    /// Error of the first query that failed, unless the answer has become too long by then.
    pub(super) async fn respond(self, results: BatchResults) -> Result<Response, ApiError> {
        let mut pieces = Box::pin(self.pieces(results));
        let mut begun = Vec::new();
        while let Some(piece) = pieces.next().await {
            begun.extend(piece?);
            // Up to here an error has a status of its own. A longer answer is sent piece by piece, so it is never
            // in memory as a whole.
            if begun.len() > WHOLE {
                let rest = pieces.map(|piece| {
                    piece.map(Bytes::from).inspect_err(|error| {
                        tracing::warn!(error = error.message, "a batch was broken off");
                    })
                });
                let begun = futures::stream::iter([Ok(Bytes::from(begun))]);
                return Ok(json(Body::from_stream(begun.chain(rest))));
            }
        }
        Ok(json(Body::from(begun)))
    }

    fn write(&self, found: BatchResult) -> Result<Vec<u8>, ApiError> {
        bytes(&(self.item)(found))
    }

    /// Writes the answer piece by piece. The answers to the remaining queries are empty once the room is used up, and
    /// `cut` says so.
    fn pieces(self, mut results: BatchResults) -> impl Stream<Item = Result<Vec<u8>, ApiError>> + Send {
        async_stream::try_stream! {
            let mut room = AnswerRoom::new(self.limit);
            let mut times = Vec::new();
            let mut written = 0;
            yield b"{\"result\":[".to_vec();
            while let Some(found) = results.next().await {
                let found = found?;
                let seconds = found.seconds;
                // A part of a result would look like the whole result.
                if found.evidence.left_out > 0 {
                    break;
                }
                let item = self.write(found)?;
                if !room.take(item.len()) {
                    break;
                }
                times.push(seconds);
                yield if written == 0 { item } else { [b",", item.as_slice()].concat() };
                written += 1;
            }
            // The remaining queries need not be searched.
            drop(results);
            let left_out = self.queries - written;
            for at in written..self.queries {
                yield format!("{}{}", if at == 0 { "" } else { "," }, self.empty).into_bytes();
            }
            yield b"]".to_vec();
            if let Some(wanted) = self.times {
                times.truncate(if wanted { times.len() } else { 0 });
                yield [b",\"time\":", bytes(&times)?.as_slice()].concat();
            }
            if left_out > 0 {
                let cut = AnswerCut { left_out, limit: room.limit() };
                yield [b",\"cut\":", bytes(&cut)?.as_slice()].concat();
            }
            yield b"}".to_vec();
        }
    }
}

fn bytes(value: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(value).map_err(|error| ApiError::new(Code::Internal, error.to_string()))
}

fn json(body: Body) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
