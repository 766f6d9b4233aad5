//! Snapshots of the engine's state, session by session.

use std::time::Duration;

use super::request::{LoadedAdapter, RequestId};

/// State of the engine between two steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSnapshot {
    /// Number of forward passes so far.
    pub steps: u64,
    /// Every session that has had a turn, in the order of service.
    pub sessions: Vec<SessionSnapshot>,
    /// State of the KV pool.
    pub blocks: BlockSnapshot,
    /// Loaded adapters, including those that are unloaded with their last session.
    pub adapters: Vec<AdapterSnapshot>,
}

/// State of the KV pool: free + cached + used = total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSnapshot {
    /// All blocks, each of [`waymark_models::BLOCK`] tokens.
    pub total: usize,
    /// Blocks without content.
    pub free: usize,
    /// Blocks held by the prefix cache alone.
    pub cached: usize,
    /// Blocks held by sessions.
    pub used: usize,
}

/// State of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSnapshot {
    /// Number of the session.
    pub id: u64,
    /// ID of the request that the session serves, if known.
    pub request: Option<RequestId>,
    /// Scheduling state.
    pub state: SessionState,
    /// Length in tokens.
    pub tokens: usize,
    /// Number of tokens with KV.
    pub computed: usize,
    /// Tokens sampled in the current turn.
    pub sampled: usize,
    /// Number of blocks that the session holds; a shared block counts for each holder.
    pub blocks: usize,
    /// Adapter of the session. `None` for the base weights.
    pub adapter: Option<LoadedAdapter>,
    /// Time since the first turn was requested.
    pub age: Duration,
    /// Time since the current turn was requested. `None` between turns.
    pub turn_age: Option<Duration>,
}

/// Scheduling state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// Waiting for its next step.
    Waiting,
    /// In the batch.
    Running,
    /// Out of the batch until its reader catches up.
    Stalled,
    /// Between two turns.
    Parked,
}

/// State of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterSnapshot {
    /// The adapter.
    pub adapter: LoadedAdapter,
    /// Number of sessions that use it.
    pub sessions: usize,
    /// If `true`, new turns with the adapter are refused, and it is unloaded with its last session.
    pub retired: bool,
}
