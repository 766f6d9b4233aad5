//! Searches for the queries of one request, several at a time.

use std::sync::Arc;
use std::time::Instant;

use futures::{StreamExt, TryStreamExt, stream};
use waymark_index::{Evidence, MAX_K, Query};

use super::batch_answer::BatchResults;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::state::AppState;

/// Maximum number of queries in a request: more than the largest published batch (512 questions with 5 rollouts each).
const MAX_QUERIES: usize = 8192;

/// Maximum number of passages in a response. Its size in bytes is bounded as well, by `--answer-bytes`. The largest
/// published batch asks for 512,000 (2,560 queries, 200 passages each).
const MAX_PASSAGES: usize = 1 << 19;

/// Number of concurrent queries per request. The searcher bounds the total over all requests and refuses what exceeds
/// it; a batch of any size takes only this many places in its queue.
const IN_FLIGHT: usize = 8;

/// Result of one query, and its duration in seconds.
pub(super) struct BatchResult {
    pub(super) evidence: Evidence,
    pub(super) seconds: f64,
}

/// Checks the number of queries, which also must not produce too many passages at `k` passages each.
pub(super) fn check(param: &str, queries: usize, k: usize) -> Result<(), ApiError> {
    let most = MAX_QUERIES.min(MAX_PASSAGES / k.max(1));
    if queries <= most {
        return Ok(());
    }
    let message = format!("`{param}` holds {queries} queries, {most} at most with {k} passages for each");
    Err(ApiError::invalid(param, message))
}

/// Returns the number of passages per query. Absent, `null` and 0 mean `default`, as in Python's `topk or default`.
pub(super) fn passages(param: &str, wanted: Option<usize>, default: usize) -> Result<usize, ApiError> {
    let k = wanted.filter(|&k| k > 0).unwrap_or(default);
    if k <= MAX_K {
        return Ok(k);
    }
    Err(ApiError::invalid(param, format!("`{param}` must be at most {MAX_K}, not {k}")))
}

/// Runs `queries` concurrently and returns their results in order.
///
/// The results that wait for their turn take at most `--answer-bytes` together. A query that finds more than its share
/// is searched again when its turn comes, with all of the room.
pub(super) fn search(state: &AppState, caller: Caller, param: &'static str, queries: Vec<Query>) -> BatchResults {
    let whole = state.config.answer_bytes;
    let caller = Arc::new(caller);
    let again = (state.clone(), Arc::clone(&caller));
    let state = state.clone();
    let searches = queries.into_iter().enumerate().map(move |(place, query)| {
        let state = state.clone();
        let caller = Arc::clone(&caller);
        async move {
            let found = find(&state, &caller, query.clone().bytes(whole / IN_FLIGHT)).await;
            let found = found.map_err(|error| error.with_param(format!("{param}[{place}]")))?;
            // A query is kept only if it has to be searched again.
            Ok::<_, ApiError>((place, (found.evidence.left_out > 0).then_some(query), found))
        }
    });
    // `buffered` keeps the order of the queries.
    let found = stream::iter(searches).buffered(IN_FLIGHT);
    let whole_result = move |(place, query, found): (usize, Option<Query>, BatchResult)| {
        let (state, caller) = again.clone();
        async move {
            let Some(query) = query else { return Ok(found) };
            let seconds = found.seconds;
            drop(found);
            let found = find(&state, &caller, query.bytes(whole)).await;
            let found = found.map_err(|error| error.with_param(format!("{param}[{place}]")))?;
            Ok(BatchResult { seconds: found.seconds + seconds, ..found })
        }
    };
    found.and_then(whole_result).boxed()
}

async fn find(state: &AppState, caller: &Caller, query: Query) -> Result<BatchResult, ApiError> {
    let started = Instant::now();
    let evidence = state.search(caller, query).await?;
    Ok(BatchResult { evidence, seconds: started.elapsed().as_secs_f64() })
}
