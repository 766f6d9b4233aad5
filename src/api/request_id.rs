//! The request that a handler works for.

use std::future::Future;

use uuid::Uuid;

use crate::engine::RequestId;

tokio::task_local! {
    static CURRENT: RequestId;
}

/// A new id.
pub(crate) fn new() -> RequestId {
    RequestId(Uuid::now_v7())
}

/// Runs a handler for this request.
pub(crate) async fn scope<F: Future>(id: RequestId, handler: F) -> F::Output {
    CURRENT.scope(id, handler).await
}

/// The request whose handler this is; nothing outside of one, in the body of an answer for example.
pub(crate) fn current() -> Option<RequestId> {
    CURRENT.try_with(|id| *id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_knows_its_own_request_and_nobody_elses() {
        let ask = async |id| {
            tokio::task::yield_now().await;
            (Some(id), current())
        };
        let (first, second) = (new(), new());
        let (one, two) = tokio::join!(scope(first, ask(first)), scope(second, ask(second)));
        assert_eq!((one.0, two.0), (one.1, two.1));
        assert_ne!(one.1, two.1);
        assert_eq!(current(), None);
    }
}
