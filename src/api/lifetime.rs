//! How long a request may hold its connection.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;
use tokio::time::Instant;

/// Until when a request may hold its connection: said by the handler, which knows what the work may take, and kept by
/// whoever serves the connection. A client that takes its answer a byte at a time is ended by it. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Lifetime(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    end: OnceLock<Instant>,
    said: Arc<Notify>,
}

impl Lifetime {
    /// One that tells `said` when its end is known.
    pub fn telling(said: Arc<Notify>) -> Self {
        Self(Arc::new(Inner { end: OnceLock::new(), said }))
    }

    /// Work for this request may go on until `end`. The first one to say so counts.
    pub fn end_by(&self, end: Instant) {
        if self.0.end.set(end).is_ok() {
            self.0.said.notify_one();
        }
    }

    /// When the work has to be over, if anybody has said so.
    pub fn end(&self) -> Option<Instant> {
        self.0.end.get().copied()
    }
}
