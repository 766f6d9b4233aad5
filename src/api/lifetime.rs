//! Deadline of a request's connection.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;
use tokio::time::Instant;

/// Deadline after which a request may no longer hold its connection. The handler sets it, because it knows how long the
/// work may take, and the connection's task enforces it, for example against clients that read one byte at a time.
/// Clones share the deadline.
#[derive(Debug, Clone, Default)]
pub struct Lifetime(Arc<LifetimeState>);

#[derive(Debug, Default)]
struct LifetimeState {
    end: OnceLock<Instant>,
    end_set: Arc<Notify>,
}

impl Lifetime {
    /// Creates a lifetime that notifies `end_set` when its end is set.
    pub fn notifying(end_set: Arc<Notify>) -> Self {
        Self(Arc::new(LifetimeState { end: OnceLock::new(), end_set }))
    }

    /// Sets the end. Only the first call has an effect.
    pub fn end_by(&self, end: Instant) {
        if self.0.end.set(end).is_ok() {
            self.0.end_set.notify_one();
        }
    }

    /// Returns the end, if it is set.
    pub fn end(&self) -> Option<Instant> {
        self.0.end.get().copied()
    }
}
