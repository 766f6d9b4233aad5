//! `/debug/state`: current state of the server, for its operator.

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use waymark_engine::{AdapterSnapshot, BlockSnapshot, EngineSnapshot, SessionSnapshot, SessionState};
use waymark_models::BLOCK;

use super::drain::DrainPhase;
use super::error::{ApiError, Code, ErrorBody};
use super::state::AppState;

/// Timeout for the engine's snapshot. The engine takes it between two steps, and a step of a long prefill takes a
/// while.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// State of the server at one moment.
#[derive(Debug, Serialize, ToSchema)]
pub struct DebugState {
    /// Always `debug.state`.
    pub object: &'static str,
    /// `serving`, `draining` or `expired`.
    pub phase: &'static str,
    /// Number of requests that are computing or whose response is still being sent, and of document changes not yet
    /// committed.
    pub requests: usize,
    /// Number of forward passes so far.
    pub steps: u64,
    /// IDs of the sessions waiting for a step, in the order they will be served.
    pub queue: Vec<u64>,
    /// All sessions that had a turn, in the order they are served.
    pub sessions: Vec<DebugSession>,
    /// KV block pool.
    pub blocks: DebugBlocks,
    /// Loaded adapters.
    pub adapters: Vec<DebugAdapter>,
}

/// Token sequence in the engine.
#[derive(Debug, Serialize, ToSchema)]
pub struct DebugSession {
    /// ID of the session.
    pub id: u64,
    /// ID of the request that the session works for, as in `x-request-id` and in the log.
    #[schema(required)]
    pub request: Option<String>,
    /// `waiting` for a step, `running` in the batch, `stalled` by a slow reader, or `parked` between two turns.
    pub state: &'static str,
    /// Length in tokens.
    pub tokens: usize,
    /// Number of tokens whose KV is computed.
    pub computed: usize,
    /// Number of tokens sampled in the current turn.
    pub sampled: usize,
    /// Number of KV blocks held; a shared block counts for each holder.
    pub blocks: usize,
    /// Generation of the session's adapter.
    #[schema(required)]
    pub adapter: Option<u64>,
    /// Seconds since the session's first turn began.
    pub age_seconds: f64,
    /// Seconds since the current turn was requested.
    #[schema(required)]
    pub turn_seconds: Option<f64>,
}

/// KV block pool: free + cached + used = total.
#[derive(Debug, Serialize, ToSchema)]
pub struct DebugBlocks {
    /// Number of tokens per block.
    pub tokens: usize,
    /// Number of all blocks.
    pub total: usize,
    /// Number of empty blocks.
    pub free: usize,
    /// Number of blocks held only by the prefix cache.
    pub cached: usize,
    /// Number of blocks held by sessions.
    pub used: usize,
}

/// Loaded adapter.
#[derive(Debug, Serialize, ToSchema)]
pub struct DebugAdapter {
    /// ID of the loaded adapter; never reused.
    pub generation: u64,
    /// Policy served with the adapter. Null for a replaced adapter, which is unloaded with its last session.
    #[schema(required)]
    pub policy: Option<String>,
    /// Number of sessions that use the adapter.
    pub sessions: usize,
}

/// Returns the current state of the server.
///
/// The state is read between two steps of the engine, so no request waits for it. It contains no text of any request.
#[utoipa::path(get, path = "/debug/state", operation_id = "debugState", tag = "operation", responses(
    (status = 200, description = "queue, sessions, blocks, adapters", body = DebugState),
    (status = 503, description = "the engine has died, or its step takes too long", body = ErrorBody),
))]
pub(crate) async fn state(State(state): State<AppState>) -> Result<axum::Json<DebugState>, ApiError> {
    let late = |_| ApiError::new(Code::EngineUnavailable, "the engine is in a long step: try again");
    // The engine thread answers between two steps only.
    let snapshot = tokio::time::timeout(SNAPSHOT_TIMEOUT, state.runtime.engine.snapshot()).await.map_err(late)??;
    let snapshot = snapshot.ok_or_else(|| {
        ApiError::new(Code::NotConfigured, "the engine of this server runs elsewhere: ask it for its state")
    })?;
    Ok(axum::Json(describe(&state, &snapshot)))
}

fn describe(state: &AppState, snapshot: &EngineSnapshot) -> DebugState {
    let served = state.policies.all();
    let named = served.iter().filter_map(|served| {
        let adapter = served.policy.adapter()?;
        Some((adapter.generation, served.policy.name.as_str()))
    });
    let names: HashMap<u64, &str> = named.collect();
    let waits = |session: &&SessionSnapshot| session.state == SessionState::Waiting;
    DebugState {
        object: "debug.state",
        phase: phase(state),
        requests: state.drain.running(),
        steps: snapshot.steps,
        queue: snapshot.sessions.iter().filter(waits).map(|session| session.id).collect(),
        sessions: snapshot.sessions.iter().map(DebugSession::from).collect(),
        blocks: snapshot.blocks.into(),
        adapters: snapshot.adapters.iter().map(|adapter| describe_adapter(adapter, &names)).collect(),
    }
}

/// Returns the name of the server's phase.
pub(super) fn phase(state: &AppState) -> &'static str {
    match state.drain.phase() {
        DrainPhase::Serving => "serving",
        DrainPhase::Draining => "draining",
        DrainPhase::Expired => "expired",
    }
}

fn describe_adapter(snapshot: &AdapterSnapshot, names: &HashMap<u64, &str>) -> DebugAdapter {
    let AdapterSnapshot { adapter, sessions, retired } = *snapshot;
    let policy = names.get(&adapter.generation).filter(|_| !retired).map(|name| (*name).to_owned());
    DebugAdapter { generation: adapter.generation, policy, sessions }
}

impl From<&SessionSnapshot> for DebugSession {
    fn from(session: &SessionSnapshot) -> Self {
        Self {
            id: session.id,
            request: session.request.map(|id| id.to_string()),
            state: match session.state {
                SessionState::Waiting => "waiting",
                SessionState::Running => "running",
                SessionState::Stalled => "stalled",
                SessionState::Parked => "parked",
            },
            tokens: session.tokens,
            computed: session.computed,
            sampled: session.sampled,
            blocks: session.blocks,
            adapter: session.adapter.map(|adapter| adapter.generation),
            age_seconds: session.age.as_secs_f64(),
            turn_seconds: session.turn_age.map(|age| age.as_secs_f64()),
        }
    }
}

impl From<BlockSnapshot> for DebugBlocks {
    fn from(blocks: BlockSnapshot) -> Self {
        let BlockSnapshot { total, free, cached, used } = blocks;
        Self { tokens: BLOCK, total, free, cached, used }
    }
}
