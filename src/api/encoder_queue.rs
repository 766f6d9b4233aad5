//! Queue in front of an encoder, which works chunk by chunk.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use super::auth::Caller;
use super::error::ApiError;
use super::fair_slots::{FairSlot, FairSlots};

/// Maximum number of requests waiting while another one is computed; further ones are refused.
const MAX_WAITING: usize = 64;

/// Admits one chunk of texts at a time to an encoder, which searches use as well. A search therefore waits for at most
/// one chunk, and waiting requests hold no thread.
#[derive(Debug)]
pub(crate) struct EncoderQueue {
    /// Held while a chunk is computed, and granted in the order of arrival.
    turn: Arc<Mutex<()>>,
    admitted: FairSlots,
}

impl EncoderQueue {
    /// Creates a queue. `what` is the plural noun for its requests, for error messages.
    pub(super) fn new(what: &'static str) -> Self {
        // One request is computed while the others wait.
        Self { turn: Arc::default(), admitted: FairSlots::new(1 + MAX_WAITING, what) }
    }

    /// Takes a place in the queue. Refuses at once instead of waiting, because the places bound the queue itself.
    pub(super) fn admit(&self, caller: &Caller) -> Result<FairSlot, ApiError> {
        self.admitted.take(caller)
    }

    /// Waits for the turn of one chunk. Each chunk waits again, so other requests are served between the chunks.
    pub(super) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }
}
