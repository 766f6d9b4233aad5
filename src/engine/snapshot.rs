//! What the engine is doing at one moment, session by session.

use std::time::{Duration, Instant};

use super::core::Core;
use super::request::{Adapter, RequestId};
use super::sequence::{Phase, Sequence};

/// The engine between two steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSnapshot {
    /// Forward passes so far.
    pub steps: u64,
    /// Every session that has had a turn, in the order of service.
    pub sessions: Vec<SessionSnapshot>,
    /// The KV pool.
    pub blocks: BlockSnapshot,
    /// The adapters that are loaded, those included that go with their last session.
    pub adapters: Vec<AdapterSnapshot>,
}

/// The KV pool: free + cached + used = total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSnapshot {
    /// All blocks, of [`waymark_models::BLOCK`] tokens each.
    pub total: usize,
    /// Those that hold nothing.
    pub free: usize,
    /// Those kept for the prefix cache alone.
    pub cached: usize,
    /// Those that sessions hold.
    pub used: usize,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSnapshot {
    /// Its number.
    pub id: u64,
    /// The request it works for.
    pub request: Option<RequestId>,
    /// What it is doing.
    pub state: SessionState,
    /// Its length, in tokens.
    pub tokens: usize,
    /// How many of them have their KV.
    pub computed: usize,
    /// Tokens sampled in the turn that is under way.
    pub sampled: usize,
    /// Blocks it holds; shared ones count for each holder.
    pub blocks: usize,
    /// The adapter it is computed with.
    pub adapter: Option<Adapter>,
    /// Time since its first turn began.
    pub age: Duration,
    /// Time since the turn under way was asked for.
    pub turn_age: Option<Duration>,
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// It waits for its next step.
    Waiting,
    /// It is in the batch.
    Running,
    /// Its reader has to catch up.
    Stalled,
    /// It is between two turns.
    Parked,
}

/// One adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterSnapshot {
    /// Which one.
    pub adapter: Adapter,
    /// Sessions that use it.
    pub sessions: usize,
    /// True when nobody may begin with it any more.
    pub retired: bool,
}

impl Core {
    /// Takes time in proportion to the sessions, and none of the backend's.
    pub(super) fn snapshot(&self) -> EngineSnapshot {
        let now = Instant::now();
        let mut sequences: Vec<&Sequence> = self.sequences.values().collect();
        sequences.sort_unstable_by_key(|sequence| sequence.ticket);
        let (served, retired) = self.adapters();
        let told = |adapter: &Adapter, retired| AdapterSnapshot {
            adapter: *adapter,
            sessions: sequences.iter().filter(|sequence| sequence.adapter == Some(*adapter)).count(),
            retired,
        };
        let mut adapters: Vec<_> = served.iter().map(|adapter| told(adapter, false)).collect();
        adapters.extend(retired.iter().map(|adapter| told(adapter, true)));
        let pool = &self.pool;
        EngineSnapshot {
            steps: self.counters.steps_total.get(),
            sessions: sequences.into_iter().map(|sequence| sequence.snapshot(now)).collect(),
            blocks: BlockSnapshot { total: pool.total(), free: pool.free(), cached: pool.cached(), used: pool.used() },
            adapters,
        }
    }
}

impl Sequence {
    fn snapshot(&self, now: Instant) -> SessionSnapshot {
        SessionSnapshot {
            id: self.id,
            request: self.request,
            state: match self.phase {
                Phase::Waiting => SessionState::Waiting,
                Phase::Running => SessionState::Running,
                Phase::Stalled => SessionState::Stalled,
                Phase::Parked => SessionState::Parked,
            },
            tokens: self.ids.len(),
            computed: self.computed,
            sampled: self.turn.as_ref().map_or(0, |turn| self.ids.len() - turn.begin),
            blocks: self.table.len(),
            adapter: self.adapter,
            age: now.duration_since(self.since),
            turn_age: self.turn.as_ref().map(|turn| now.duration_since(turn.submitted)),
        }
    }
}
