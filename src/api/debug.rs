//! `/debug/state`: what the server is doing now, for whoever operates it.

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use waymark_models::BLOCK;

use super::drain::Phase;
use super::error::{ApiError, Code, ErrorBody};
use super::state::AppState;
use crate::engine::{AdapterSnapshot, BlockSnapshot, EngineSnapshot, SessionSnapshot, SessionState};

/// How long the engine may take to answer: it does so between two steps, and a step of a long prefill takes a while.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server at one moment.
#[derive(Debug, Serialize, ToSchema)]
pub struct DebugState {
    /// Always `debug.state`.
    pub object: &'static str,
    /// `serving`, `draining` or `expired`.
    pub phase: &'static str,
    /// Requests that compute, those included whose answer is still being sent; and changes of documents that are not made yet.
    pub requests: usize,
    /// Forward passes so far.
    pub steps: u64,
    /// Sessions that wait for a step, in the order in which they will be served: their numbers.
    pub queue: Vec<u64>,
    /// Every session that has had a turn, oldest place in the order of service first.
    pub sessions: Vec<DebugSession>,
    /// The KV pool.
    pub blocks: DebugBlocks,
    /// The adapters that are loaded.
    pub adapters: Vec<DebugAdapter>,
}

/// One sequence of tokens in the engine.
#[derive(Debug, Serialize, ToSchema)]
pub struct DebugSession {
    /// Its number.
    pub id: u64,
    /// The request it works for, as in `x-request-id` and in the log.
    #[schema(required)]
    pub request: Option<String>,
    /// `waiting` for a step, `running` in the batch, `stalled` behind a slow reader, or `parked` between two turns.
    pub state: &'static str,
    /// Its length, in tokens.
    pub tokens: usize,
    /// How many of them have their KV.
    pub computed: usize,
    /// Tokens sampled in the turn under way.
    pub sampled: usize,
    /// KV blocks it holds; shared ones count for each holder.
    pub blocks: usize,
    /// The generation of its adapter.
    #[schema(required)]
    pub adapter: Option<u64>,
    /// Seconds since its first turn began.
    pub age_seconds: f64,
    /// Seconds since the turn under way was asked for.
    #[schema(required)]
    pub turn_seconds: Option<f64>,
}

/// The KV pool: free + cached + used = total.
#[derive(Debug, Serialize, ToSchema)]
pub struct DebugBlocks {
    /// Tokens in a block.
    pub tokens: usize,
    /// All blocks.
    pub total: usize,
    /// Those that hold nothing.
    pub free: usize,
    /// Those kept for the prefix cache alone.
    pub cached: usize,
    /// Those that sessions hold.
    pub used: usize,
}

/// A loaded adapter.
#[derive(Debug, Serialize, ToSchema)]
pub struct DebugAdapter {
    /// Its identity: never used again.
    pub generation: u64,
    /// The policy that is served with it; none for one that has been replaced and goes with its last session.
    #[schema(required)]
    pub policy: Option<String>,
    /// Sessions that use it.
    pub sessions: usize,
}

/// What the server is doing now.
///
/// Read between two steps of the engine; no request waits for it. Shows no text of any request.
#[utoipa::path(get, path = "/debug/state", operation_id = "debugState", tag = "operation", responses(
    (status = 200, description = "queue, sessions, blocks, adapters", body = DebugState),
    (status = 503, description = "the engine is dead, or a step takes too long", body = ErrorBody),
))]
pub(crate) async fn state(State(state): State<AppState>) -> Result<axum::Json<DebugState>, ApiError> {
    let late = |_| ApiError::new(Code::EngineUnavailable, "the engine is in a long step: ask again");
    let snapshot = tokio::time::timeout(PATIENCE, state.runtime.engine.snapshot()).await.map_err(late)??;
    Ok(axum::Json(tell(&state, &snapshot)))
}

fn tell(state: &AppState, snapshot: &EngineSnapshot) -> DebugState {
    let served = state.policies.all();
    let named = served.iter().filter_map(|served| {
        let adapter = served.policy.adapter()?;
        Some((adapter.generation, served.policy.name.as_str()))
    });
    let names: HashMap<u64, &str> = named.collect();
    let waits = |session: &&SessionSnapshot| session.state == SessionState::Waiting;
    DebugState {
        object: "debug.state",
        phase: match state.drain.phase() {
            Phase::Serving => "serving",
            Phase::Draining => "draining",
            Phase::Expired => "expired",
        },
        requests: state.drain.running(),
        steps: snapshot.steps,
        queue: snapshot.sessions.iter().filter(waits).map(|session| session.id).collect(),
        sessions: snapshot.sessions.iter().map(DebugSession::from).collect(),
        blocks: snapshot.blocks.into(),
        adapters: snapshot.adapters.iter().map(|adapter| told(adapter, &names)).collect(),
    }
}

fn told(snapshot: &AdapterSnapshot, names: &HashMap<u64, &str>) -> DebugAdapter {
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
