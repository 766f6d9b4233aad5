//! `/debug/load`: load of the engine in numbers, cheap enough to poll.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use waymark_engine::Counters;
use waymark_models::BLOCK;

use super::debug::{DebugBlocks, phase};
use super::state::AppState;

/// Load of the server at one moment.
#[derive(Debug, Serialize, ToSchema)]
pub struct DebugLoad {
    /// Always `debug.load`.
    pub object: &'static str,
    /// `serving`, `draining` or `expired`.
    pub phase: &'static str,
    /// Seconds since the server started.
    pub seconds: f64,
    /// Number of requests that are computing or whose response is still being sent, and of document changes not yet
    /// committed.
    pub requests: usize,
    /// Sessions of the engine, by state.
    pub sessions: LoadSessions,
    /// KV block pool.
    pub blocks: DebugBlocks,
    /// Counters since the server started. A rate is the difference of two polls, divided by that of `seconds`.
    pub totals: LoadTotals,
    /// Served index. Null if there is none.
    #[schema(required)]
    pub index: Option<LoadIndex>,
}

/// Sessions of the engine, by state.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoadSessions {
    /// Number of sessions in the batch.
    pub running: u64,
    /// Number of sessions that wait for their next step.
    pub waiting: u64,
    /// Number of sessions between two turns, for example during a search.
    pub parked: u64,
    /// Number of sessions whose reader is too slow.
    pub stalled: u64,
}

/// Counters since the server started.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoadTotals {
    /// Number of tokens computed in prefill, including those computed again.
    pub prefill_tokens: u64,
    /// Number of tokens computed again.
    pub recomputed_tokens: u64,
    /// Number of prompt tokens found in the prefix cache.
    pub prefix_hit_tokens: u64,
    /// Number of tokens sampled.
    pub decode_tokens: u64,
    /// Number of forward passes.
    pub steps: u64,
    /// Number of turns begun.
    pub turns: u64,
    /// Number of running sessions that left the batch because blocks were short.
    pub preemptions: u64,
    /// Number of idle sessions whose blocks were taken.
    pub evictions: u64,
    /// Number of searches made by policies.
    pub searches: u64,
    /// Number of searches requested by clients.
    pub client_searches: u64,
}

/// Snapshot of the index that is searched.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoadIndex {
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Number of passages.
    pub passages: u64,
    /// If `true`, a newer snapshot exists but cannot be opened.
    pub stale: bool,
}

/// Returns the load of the server.
///
/// The numbers are read without waiting for the engine, so they may be of slightly different moments.
#[utoipa::path(get, path = "/debug/load", operation_id = "debugLoad", tag = "operation", responses(
    (status = 200, description = "sessions, blocks, counters", body = DebugLoad),
))]
pub(crate) async fn load(State(state): State<AppState>) -> axum::Json<DebugLoad> {
    let counters = state.runtime.engine.counters();
    let index = state.library.as_ref().map(|library| library.live.state());
    axum::Json(DebugLoad {
        object: "debug.load",
        phase: phase(&state),
        seconds: state.started.elapsed().as_secs_f64(),
        requests: state.drain.running(),
        sessions: LoadSessions {
            running: counters.sessions_running.get(),
            waiting: counters.sessions_waiting.get(),
            parked: counters.sessions_parked.get(),
            stalled: counters.sessions_stalled.get(),
        },
        blocks: blocks(counters),
        totals: totals(&state, counters),
        index: index.map(|index| LoadIndex { snapshot: index.snapshot, passages: index.passages, stale: index.stale }),
    })
}

fn blocks(counters: &Counters) -> DebugBlocks {
    let free = counters.blocks_free.get() as usize;
    let cached = counters.blocks_cached.get() as usize;
    let used = counters.blocks_used.get() as usize;
    DebugBlocks { tokens: BLOCK, total: free + cached + used, free, cached, used }
}

fn totals(state: &AppState, counters: &Counters) -> LoadTotals {
    LoadTotals {
        prefill_tokens: counters.prefill_tokens_total.get(),
        recomputed_tokens: counters.prefill_tokens_recomputed_total.get(),
        prefix_hit_tokens: counters.prefix_cache_hit_tokens_total.get(),
        decode_tokens: counters.decode_tokens_total.get(),
        steps: counters.steps_total.get(),
        turns: counters.turns_total.get(),
        preemptions: counters.preemptions_total.get(),
        evictions: counters.evictions_total.get(),
        searches: state.metrics.policy_searches(),
        client_searches: state.metrics.client_searches(),
    }
}
