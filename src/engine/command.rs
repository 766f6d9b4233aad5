//! What handles ask of the engine's thread.
//!
//! The channel has no bound of its own, because a drop must not wait and must not be lost. Its length is bounded by
//! what may be sent: one turn per session at a time, one stop, one resume per full mailbox, one close; and sessions that
//! were never admitted are bounded by the permits of the waiting queue.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use tokio::sync::oneshot;
use waymark_models::weights::Weights;

use super::error::EngineError;
use super::mailbox::Outbox;
use super::request::{Adapter, Generate, SessionOptions};
use super::snapshot::EngineSnapshot;
use super::stage::Stage;

/// A place in the waiting queue, given back when the session is admitted or gone.
#[derive(Debug)]
pub(super) struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Takes a place, if fewer than `limit` are taken.
    pub(super) fn take(taken: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        taken.fetch_update(Relaxed, Relaxed, |count| (count < limit).then_some(count + 1)).ok()?;
        Some(Self(taken.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// One turn of one session.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) session: u64,
    pub(super) options: SessionOptions,
    /// How many of the session's tokens stay: those beyond were sampled but never delivered.
    pub(super) keep: usize,
    pub(super) append: Vec<u32>,
    pub(super) generate: Generate,
    pub(super) outbox: Outbox,
    pub(super) submitted: Instant,
    pub(super) stage: Stage,
    /// Held by the first turn of a session while it waits.
    pub(super) permit: Option<Permit>,
}

#[derive(Debug)]
pub(super) enum Command {
    Generate(Box<Submission>),
    /// The reader has caught up.
    Resume(u64),
    /// The turn was dropped; the session stays.
    Stop(u64),
    /// The session was dropped.
    Close(u64),
    LoadAdapter {
        dir: PathBuf,
        reply: oneshot::Sender<Result<Adapter, EngineError>>,
    },
    UnloadAdapter(Adapter),
    ReplaceWeights {
        weights: Box<Weights>,
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    /// Asks what the engine is doing.
    Snapshot(oneshot::Sender<EngineSnapshot>),
    /// Ends the thread; the sender is dropped when it is over.
    Shutdown(oneshot::Sender<()>),
}
