//! Queries that wait for the embedder, and the calls that compute them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use waymark_index::{EmbedError, QueryAnnouncement, QueryContext};

use super::QueryCounters;
use super::cache::VectorCache;
use super::key::QueryKey;

/// Function that embeds the texts of one call.
type EmbedTexts<'a> = dyn Fn(&[&str]) -> Result<Vec<Vec<f32>>, EmbedError> + 'a;

/// Limits of the calls of an embedder.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueLimits {
    /// Maximum number of queries that a call takes from other callers.
    pub(super) batch_queries: usize,
    /// Maximum size of a call that takes queries from other callers, in bytes.
    pub(super) batch_bytes: usize,
    /// Maximum duration of a call that takes queries from other callers, estimated by the time per byte of the previous
    /// call.
    pub(super) batch_time: Duration,
    /// Maximum number of concurrent calls.
    pub(super) concurrent_calls: usize,
}

impl QueueLimits {
    /// One call at a time, with the queries that wait: about as many as fit into one pass of an encoder, and fewer if
    /// the model is so large that the first of them would wait long for the last.
    pub(super) const BATCHED: QueueLimits = QueueLimits {
        batch_queries: 31,
        batch_bytes: 4096,
        batch_time: Duration::from_millis(50),
        concurrent_calls: 1,
    };
    /// Any number of calls, each with the queries of its own caller.
    pub(super) const UNBATCHED: QueueLimits =
        QueueLimits { batch_queries: 0, batch_bytes: 0, batch_time: Duration::ZERO, concurrent_calls: usize::MAX };
}

/// Queries of the searches that run or wait.
pub(super) struct QueryQueue {
    state: Mutex<QueueState>,
    /// Signaled at the end of each call.
    called: Condvar,
    limits: QueueLimits,
    counters: QueryCounters,
}

#[derive(Debug)]
struct QueueState {
    queries: HashMap<QueryKey, PendingQuery>,
    /// Waiting queries by age.
    waiting: BTreeMap<u64, QueryKey>,
    /// Number of the last query that began to wait.
    next: u64,
    /// Number of calls in progress.
    calls: usize,
    /// Seconds per byte of the last call. `None` before the first one.
    seconds_per_byte: Option<f64>,
    cache: VectorCache,
}

/// Query that a search needs.
#[derive(Debug)]
struct PendingQuery {
    /// Number of searches that need it.
    holders: usize,
    progress: QueryProgress,
    /// If `true`, the query was in a batch that failed, and is computed by its own callers only.
    unbatched: bool,
}

#[derive(Debug)]
enum QueryProgress {
    /// Not computed; the number is its age in [`QueueState::waiting`].
    Waiting(u64),
    Computing,
    Ready(Arc<[f32]>),
}

/// Share in a pending query. Dropping the last one removes the query.
struct QueryHold {
    queue: Arc<QueryQueue>,
    key: QueryKey,
}

/// Call of the embedder in progress.
struct EmbedCall<'a> {
    queue: &'a QueryQueue,
    queries: Vec<QueryKey>,
    /// If `true`, queries of other callers are among the queries.
    shared: bool,
}

impl QueryQueue {
    pub(super) fn new(limits: QueueLimits, cache_bytes: usize) -> Self {
        let state = QueueState {
            queries: HashMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            calls: 0,
            seconds_per_byte: None,
            cache: VectorCache::new(cache_bytes),
        };
        Self { state: Mutex::new(state), called: Condvar::new(), limits, counters: QueryCounters::default() }
    }

    pub(super) fn counters(&self) -> &QueryCounters {
        &self.counters
    }

    /// Announces a query, so that another caller can compute it if its own caller has to wait. `None` if no other
    /// caller may compute it, or if its vector is in the cache.
    pub(super) fn announce_query(self: &Arc<Self>, text: &str, context: QueryContext) -> Option<QueryAnnouncement> {
        if text.len() > self.limits.batch_bytes {
            return None;
        }
        let key = QueryKey::new(context.cache_salt, text);
        if self.lock().cache.contains(&key) {
            return None;
        }
        Some(Box::new(self.hold(&key)))
    }

    /// Returns the vector of each text, in order.
    pub(super) fn vectors(
        self: &Arc<Self>,
        texts: &[&str],
        context: QueryContext,
        embed: &EmbedTexts<'_>,
    ) -> Result<Vec<Vec<f32>>, EmbedError> {
        let keys: Vec<QueryKey> = texts.iter().map(|text| QueryKey::new(context.cache_salt, text)).collect();
        let mut found: Vec<Option<Arc<[f32]>>> = {
            let mut state = self.lock();
            keys.iter().map(|key| state.cache.get(key)).collect()
        };
        let cached = found.iter().flatten().count();
        self.counters.queries.fetch_add(keys.len() as u64, Ordering::Relaxed);
        self.counters.cached.fetch_add(cached as u64, Ordering::Relaxed);
        let missing = keys.iter().zip(&found).filter(|(_, vector)| vector.is_none());
        // Held until the vectors are taken, whichever caller computes them.
        let held: Vec<QueryHold> = missing.map(|(key, _)| self.hold(key)).collect();
        while let Some(call) = self.next_call(&keys, &mut found, &held, context.deadline)? {
            let shared = call.shared;
            // The query of another caller may be the one that fails. This caller's own are computed alone next.
            if let Err(error) = call.run(embed)
                && !shared
            {
                return Err(error);
            }
        }
        Ok(found.into_iter().flatten().map(|vector| vector.to_vec()).collect())
    }

    /// Takes vectors that are ready. Returns `None` once every vector is there, or a call once this caller may call the
    /// embedder.
    ///
    /// # Errors
    /// If `deadline` passes before.
    fn next_call(
        &self,
        keys: &[QueryKey],
        found: &mut [Option<Arc<[f32]>>],
        held: &[QueryHold],
        deadline: Option<Instant>,
    ) -> Result<Option<EmbedCall<'_>>, EmbedError> {
        let mut state = self.lock();
        loop {
            for (key, vector) in keys.iter().zip(found.iter_mut()).filter(|(_, vector)| vector.is_none()) {
                *vector = state.ready(key);
            }
            if found.iter().all(Option::is_some) {
                return Ok(None);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err("the deadline of the search passed before its query was embedded".into());
            }
            let own = if state.calls < self.limits.concurrent_calls { state.take_own(held) } else { Vec::new() };
            if !own.is_empty() {
                let count = own.len();
                let queries = state.with_waiting_queries(own, &self.limits);
                state.calls += 1;
                return Ok(Some(EmbedCall { queue: self, shared: queries.len() > count, queries }));
            }
            state = self.wait(state, deadline);
        }
    }

    /// Waits for the end of a call, or until `deadline`.
    fn wait<'a>(&self, state: MutexGuard<'a, QueueState>, deadline: Option<Instant>) -> MutexGuard<'a, QueueState> {
        let Some(deadline) = deadline else {
            return self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let (state, _) = self.called.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        state
    }

    /// Number of queries that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Returns `true` if no search needs a query and no call is in progress.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.queries.is_empty() && state.waiting.is_empty() && state.calls == 0
    }

    fn hold(self: &Arc<Self>, key: &QueryKey) -> QueryHold {
        self.lock().hold(key);
        QueryHold { queue: Arc::clone(self), key: key.clone() }
    }

    /// Locks the state. A panic of another holder cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Adds a holder to a query.
    fn hold(&mut self, key: &QueryKey) {
        if let Some(query) = self.queries.get_mut(key) {
            query.holders += 1;
            return;
        }
        let progress = self.wait(key);
        self.queries.insert(key.clone(), PendingQuery { holders: 1, progress, unbatched: false });
    }

    /// Puts a query at the end of those that wait.
    fn wait(&mut self, key: &QueryKey) -> QueryProgress {
        self.next += 1;
        self.waiting.insert(self.next, key.clone());
        QueryProgress::Waiting(self.next)
    }

    fn ready(&self, key: &QueryKey) -> Option<Arc<[f32]>> {
        match &self.queries.get(key)?.progress {
            QueryProgress::Ready(vector) => Some(Arc::clone(vector)),
            _ => None,
        }
    }

    /// Sets the vector of a query that is still needed.
    fn finish(&mut self, key: &QueryKey, vector: Arc<[f32]>) {
        let Some(query) = self.queries.get_mut(key) else { return };
        let before = std::mem::replace(&mut query.progress, QueryProgress::Ready(vector));
        // All its holders may have left during the call, and a new search may have asked for it.
        if let QueryProgress::Waiting(age) = before {
            self.waiting.remove(&age);
        }
    }

    /// Takes the caller's own waiting queries for a call.
    fn take_own(&mut self, held: &[QueryHold]) -> Vec<QueryKey> {
        // A text that occurs twice is no longer waiting at its second place.
        held.iter().filter(|hold| self.take(&hold.key)).map(|hold| hold.key.clone()).collect()
    }

    /// Adds the oldest waiting queries of other callers to a call.
    fn with_waiting_queries(&mut self, mut queries: Vec<QueryKey>, limits: &QueueLimits) -> Vec<QueryKey> {
        if queries.iter().any(|key| self.is_unbatched(key)) {
            return queries;
        }
        let own: usize = queries.iter().map(|key| key.text.len()).sum();
        let mut room = self.affordable_bytes(limits).saturating_sub(own);
        let mut others = Vec::new();
        for key in self.waiting.values() {
            let bytes = key.text.len();
            if bytes > limits.batch_bytes || self.is_unbatched(key) {
                continue;
            }
            if bytes > room || others.len() == limits.batch_queries {
                break;
            }
            room -= bytes;
            others.push(key.clone());
        }
        for key in &others {
            self.take(key);
        }
        queries.append(&mut others);
        queries
    }

    fn is_unbatched(&self, key: &QueryKey) -> bool {
        self.queries.get(key).is_some_and(|query| query.unbatched)
    }

    /// Returns the maximum size of a batch in bytes. 0 before the first call, because the time per byte is not known
    /// yet.
    fn affordable_bytes(&self, limits: &QueueLimits) -> usize {
        let Some(cost) = self.seconds_per_byte else { return 0 };
        let affordable = limits.batch_time.as_secs_f64() / cost.max(f64::MIN_POSITIVE);
        affordable.min(limits.batch_bytes as f64) as usize
    }

    /// Marks a query as being computed. Returns `false` if it does not wait.
    fn take(&mut self, key: &QueryKey) -> bool {
        let Some(query) = self.queries.get_mut(key) else { return false };
        let QueryProgress::Waiting(age) = query.progress else { return false };
        query.progress = QueryProgress::Computing;
        self.waiting.remove(&age);
        true
    }
}

impl EmbedCall<'_> {
    /// Computes the queries and hands out their vectors.
    fn run(self, embed: &EmbedTexts<'_>) -> Result<(), EmbedError> {
        let texts: Vec<&str> = self.queries.iter().map(|key| &*key.text).collect();
        self.queue.counters.calls.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let vectors = if self.shared {
            // A panic at the text of another search must not end the search that computes it.
            let embedded = catch_unwind(AssertUnwindSafe(|| embed(&texts)));
            embedded.unwrap_or_else(|_| Err("the embedder panicked".into()))?
        } else {
            embed(&texts)?
        };
        if vectors.len() != texts.len() {
            return Err(format!("the embedder gave {} vectors for {} queries", vectors.len(), texts.len()).into());
        }
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let mut state = self.queue.lock();
        state.seconds_per_byte = Some(started.elapsed().as_secs_f64() / bytes.max(1) as f64);
        for (key, vector) in self.queries.iter().zip(vectors) {
            let vector: Arc<[f32]> = vector.into();
            state.cache.insert(key, &vector);
            state.finish(key, vector);
        }
        self.queue.counters.cache_bytes.store(state.cache.bytes() as u64, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for EmbedCall<'_> {
    /// Ends the call. After an error or a panic, its queries wait again. Only their own callers compute the queries of
    /// a failed batch.
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.calls -= 1;
        for key in &self.queries {
            let computing = |query: &PendingQuery| matches!(query.progress, QueryProgress::Computing);
            if state.queries.get(key).is_some_and(computing) {
                let progress = state.wait(key);
                if let Some(query) = state.queries.get_mut(key) {
                    query.progress = progress;
                    query.unbatched |= self.shared;
                }
            }
        }
        drop(state);
        self.queue.called.notify_all();
    }
}

impl Drop for QueryHold {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        let Some(query) = state.queries.get_mut(&self.key) else { return };
        query.holders -= 1;
        if query.holders > 0 {
            return;
        }
        if let Some(PendingQuery { progress: QueryProgress::Waiting(age), .. }) = state.queries.remove(&self.key) {
            state.waiting.remove(&age);
        }
    }
}

impl fmt::Debug for QueryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryQueue").field("limits", &self.limits).finish_non_exhaustive()
    }
}
