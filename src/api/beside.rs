//! Work that would hold others up.

use tokio::task::spawn_blocking;
use tracing::Span;

use super::error::{ApiError, Code};

/// Does `work` on a thread of its own, inside the span of the request: a prompt, or the passages of an answer, may be
/// megabytes of text. A panic in it is an error of the request.
pub(super) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let bug = |_| ApiError::new(Code::Internal, "this request ran into a bug in the server");
    let span = Span::current();
    spawn_blocking(move || span.in_scope(work)).await.map_err(bug)?
}
