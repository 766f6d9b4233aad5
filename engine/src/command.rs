//! Commands that handles send to the engine thread.
//!
//! The channel is unbounded, because dropping a handle must neither wait nor lose its command. Its length is bounded
//! all the same: a session sends one turn at a time, one stop, one resume per full mailbox, one fork and one close.
//! The permits of the waiting queue limit the number of sessions that were never admitted. Forks need no permit before
//! their first turn, but they hold no block of their own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use tokio::sync::oneshot;
use waymark_models::weights::Weights;

use super::error::EngineError;
use super::mailbox::Outbox;
use super::request::{Generate, LoadedAdapter, SessionOptions};
use super::snapshot::EngineSnapshot;
use super::stage::TurnStage;

/// A slot in the waiting queue, released when the session is admitted or dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Takes a slot if fewer than `limit` are taken.
    pub(super) fn take(taken: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        // Relaxed is enough: the counter guards no other memory.
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
    /// Number of the session's tokens to keep: later ones were sampled but never delivered.
    pub(super) keep: usize,
    pub(super) append: Vec<u32>,
    pub(super) generate: Generate,
    pub(super) outbox: Outbox,
    pub(super) submitted: Instant,
    pub(super) stage: TurnStage,
    /// Slot in the waiting queue, held by the first turn of a session until it is admitted.
    pub(super) permit: Option<Permit>,
}

/// A new session that begins with tokens of another one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fork {
    /// Session whose tokens are taken.
    pub(super) parent: u64,
    /// New session.
    pub(super) session: u64,
    /// Options of both sessions.
    pub(super) options: SessionOptions,
    /// Number of tokens taken; at least 1.
    pub(super) keep: usize,
    pub(super) asked: Instant,
}

#[derive(Debug)]
pub(super) enum EngineCommand {
    Generate(Box<Submission>),
    /// Opens a session that shares the blocks of another one. The new session is between turns.
    Fork(Fork),
    /// The reader has emptied its full mailbox.
    Resume(u64),
    /// The turn was dropped; the session stays.
    Stop(u64),
    /// The session was dropped.
    Close(u64),
    LoadAdapter {
        dir: PathBuf,
        reply: oneshot::Sender<Result<LoadedAdapter, EngineError>>,
    },
    UnloadAdapter(LoadedAdapter),
    ReplaceWeights {
        weights: Box<Weights>,
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    /// Returns a snapshot of the engine's state.
    Snapshot(oneshot::Sender<EngineSnapshot>),
    /// Ends the thread. The thread drops the sender when it has ended.
    Shutdown(oneshot::Sender<()>),
}
