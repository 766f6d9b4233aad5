//! Runs blocking work off the async threads.

use tokio::task::spawn_blocking;
use tracing::{Instrument, Span};

use super::error::ApiError;

/// Runs `work` on a blocking thread, inside the span of the request. Prompts and passages may be megabytes of text,
/// which would stall other requests on the async threads. A panic in `work` becomes an error of the request.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let span = Span::current();
    spawn_blocking(move || span.in_scope(work)).await.map_err(|_| ApiError::bug())?
}

/// Runs `work` as a task of its own, inside the span of the request, and waits for it. A client that disconnects ends its
/// request, but not this work.
pub(super) async fn run_to_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(work.in_current_span()).await.map_err(|_| ApiError::bug())?
}
