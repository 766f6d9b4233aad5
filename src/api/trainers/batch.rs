//! Many queries in one request.

use std::time::Instant;

use futures::{StreamExt, TryStreamExt, stream};
use waymark_index::{Evidence, Query};

use crate::agent::MAX_K;
use crate::api::error::ApiError;
use crate::api::state::AppState;

/// Queries one request may hold: more than the largest published batch (512 questions in 5 rollouts each).
const MAX_QUERIES: usize = 8192;

/// Passages that one request may be answered with: all of them lie in memory at once, twice over while they are written
/// down. The largest published batch asks for 512,000 (2,560 queries, 200 passages each).
const MAX_PASSAGES: usize = 1 << 19;

/// Queries of one request that run or wait at the same time. All requests together are bounded by the searcher, which
/// refuses what is too much; a batch of any size takes only so many of its places.
const IN_FLIGHT: usize = 8;

/// What one query found, and how many seconds that took.
pub(super) struct Searched {
    pub(super) evidence: Evidence,
    pub(super) seconds: f64,
}

/// Refuses a request with more queries than one may hold, or with so many that `k` passages for each would be too much.
pub(super) fn check(param: &str, queries: usize, k: usize) -> Result<(), ApiError> {
    let most = MAX_QUERIES.min(MAX_PASSAGES / k.max(1));
    if queries <= most {
        return Ok(());
    }
    let message = format!("`{param}` holds {queries} queries, {most} at most with {k} passages for each");
    Err(ApiError::invalid(param, message))
}

/// How many passages are wanted per query, where nothing, `null` and 0 mean `default` as in Python's `topk or default`.
pub(super) fn passages(param: &str, wanted: Option<usize>, default: usize) -> Result<usize, ApiError> {
    let k = wanted.filter(|&k| k > 0).unwrap_or(default);
    if k <= MAX_K {
        return Ok(k);
    }
    Err(ApiError::invalid(param, format!("`{param}` must be at most {MAX_K}, not {k}")))
}

/// Searches for `queries` side by side; what they found, in their order. The first failure ends them all.
pub(super) async fn search(state: &AppState, param: &str, queries: Vec<Query>) -> Result<Vec<Searched>, ApiError> {
    let searches = queries.into_iter().enumerate().map(|(place, query)| async move {
        let begun = Instant::now();
        let found = state.search(query).await;
        let evidence = found.map_err(|error| error.with_param(format!("{param}[{place}]")))?;
        Ok(Searched { evidence, seconds: begun.elapsed().as_secs_f64() })
    });
    stream::iter(searches).buffered(IN_FLIGHT).try_collect().await
}
