//! Runs blocking work off the async threads.

use tokio::task::spawn_blocking;
use tracing::Span;

use super::error::{ApiError, Code};

/// Runs `work` on a blocking thread, inside the span of the request. Prompts and passages may be megabytes of text,
/// which would stall other requests on the async threads. A panic in `work` becomes an error of the request.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let bug = |_| ApiError::new(Code::Internal, "this request ran into a bug in the server");
    let span = Span::current();
    spawn_blocking(move || span.in_scope(work)).await.map_err(bug)?
}
