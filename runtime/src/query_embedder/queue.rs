//! Queries that wait for the embedder, and the calls that compute them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use waymark_index::{EmbedError, QueuedQuery};

use super::QueryCounters;
use super::cache::VectorCache;

/// Function that embeds the texts of one call.
type EmbedTexts<'a> = dyn Fn(&[&str]) -> Result<Vec<Vec<f32>>, EmbedError> + 'a;

/// Limits of the calls of an embedder.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueLimits {
    /// Maximum number of queries per call, apart from those of the caller itself.
    company: usize,
    /// Maximum size of these queries together, in bytes.
    bytes: usize,
    /// Maximum number of calls at a time.
    calls: usize,
}

impl QueueLimits {
    /// One call at a time, with the queries that wait: about as many as fit into one pass of an encoder.
    pub(super) const TOGETHER: QueueLimits = QueueLimits { company: 31, bytes: 4096, calls: 1 };
    /// Any number of calls, each with the queries of its caller alone.
    pub(super) const ALONE: QueueLimits = QueueLimits { company: 0, bytes: 0, calls: usize::MAX };
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
    queries: HashMap<Arc<str>, PendingQuery>,
    /// Waiting queries by age.
    waiting: BTreeMap<u64, Arc<str>>,
    /// Number that the next query gets.
    next: u64,
    calls: usize,
    cache: VectorCache,
}

/// Query that a search needs.
#[derive(Debug)]
struct PendingQuery {
    /// Number of searches that need it.
    holders: usize,
    progress: QueryProgress,
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
    text: Arc<str>,
}

/// Call of the embedder in progress.
struct EmbedCall<'a> {
    queue: &'a QueryQueue,
    texts: Vec<Arc<str>>,
    /// If `true`, queries of other callers are among the texts.
    shared: bool,
}

impl QueryQueue {
    pub(super) fn new(limits: QueueLimits, cache_bytes: usize) -> Self {
        let cache = VectorCache::new(cache_bytes);
        let state = QueueState { queries: HashMap::new(), waiting: BTreeMap::new(), next: 0, calls: 0, cache };
        Self { state: Mutex::new(state), called: Condvar::new(), limits, counters: QueryCounters::default() }
    }

    pub(super) fn counters(&self) -> &QueryCounters {
        &self.counters
    }

    /// Announces a query, so that another caller computes it if its own has to wait. `None` if none would, or if the
    /// vector is in the cache.
    pub(super) fn announce(self: &Arc<Self>, text: &str) -> Option<QueuedQuery> {
        if text.len() > self.limits.bytes || self.lock().cache.get(text).is_some() {
            return None;
        }
        Some(Box::new(self.hold(text)))
    }

    /// Returns the vector of each text, in order.
    pub(super) fn vectors(
        self: &Arc<Self>,
        texts: &[&str],
        embed: &EmbedTexts<'_>,
    ) -> Result<Vec<Vec<f32>>, EmbedError> {
        let mut found: Vec<Option<Arc<[f32]>>> = {
            let mut state = self.lock();
            texts.iter().map(|text| state.cache.get(text)).collect()
        };
        let cached = found.iter().flatten().count();
        self.counters.queries.fetch_add(texts.len() as u64, Ordering::Relaxed);
        self.counters.cached.fetch_add(cached as u64, Ordering::Relaxed);
        let missing = texts.iter().zip(&found).filter(|(_, vector)| vector.is_none());
        // Held until the vectors are taken, whoever computes them.
        let held: Vec<QueryHold> = missing.map(|(text, _)| self.hold(text)).collect();
        let mut company = self.limits.company;
        while let Some(call) = self.next_call(texts, &mut found, &held, company) {
            let shared = call.shared;
            match call.run(embed) {
                Ok(()) => {}
                // The text of another search may be the one that fails.
                Err(_) if shared => company = 0,
                Err(error) => return Err(error),
            }
        }
        Ok(found.into_iter().flatten().map(|vector| vector.to_vec()).collect())
    }

    /// Takes vectors that are ready. Waits until none is missing, which is `None`, or until a call is this caller's to make.
    fn next_call(
        &self,
        texts: &[&str],
        found: &mut [Option<Arc<[f32]>>],
        held: &[QueryHold],
        company: usize,
    ) -> Option<EmbedCall<'_>> {
        let mut state = self.lock();
        loop {
            for (text, vector) in texts.iter().zip(found.iter_mut()).filter(|(_, vector)| vector.is_none()) {
                *vector = state.ready(text);
            }
            if found.iter().all(Option::is_some) {
                return None;
            }
            let own = if state.calls < self.limits.calls { state.take_own(held) } else { Vec::new() };
            if !own.is_empty() {
                let count = own.len();
                let texts = state.with_company(own, company, self.limits.bytes);
                state.calls += 1;
                return Some(EmbedCall { queue: self, shared: texts.len() > count, texts });
            }
            state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
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

    fn hold(self: &Arc<Self>, text: &str) -> QueryHold {
        let text = self.lock().hold(text);
        QueryHold { queue: Arc::clone(self), text }
    }

    /// Locks the state. A panic of another holder cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Adds a holder to the query `text`.
    fn hold(&mut self, text: &str) -> Arc<str> {
        if let Some((text, _)) = self.queries.get_key_value(text) {
            let text = Arc::clone(text);
            if let Some(query) = self.queries.get_mut(&text) {
                query.holders += 1;
            }
            return text;
        }
        let text: Arc<str> = text.into();
        let progress = self.wait(&text);
        self.queries.insert(Arc::clone(&text), PendingQuery { holders: 1, progress });
        text
    }

    /// Puts a query at the end of those that wait.
    fn wait(&mut self, text: &Arc<str>) -> QueryProgress {
        self.next += 1;
        self.waiting.insert(self.next, Arc::clone(text));
        QueryProgress::Waiting(self.next)
    }

    fn ready(&self, text: &str) -> Option<Arc<[f32]>> {
        match &self.queries.get(text)?.progress {
            QueryProgress::Ready(vector) => Some(Arc::clone(vector)),
            _ => None,
        }
    }

    /// Sets the vector of a query that is still needed.
    fn finish(&mut self, text: &str, vector: Arc<[f32]>) {
        let Some(query) = self.queries.get_mut(text) else { return };
        let before = std::mem::replace(&mut query.progress, QueryProgress::Ready(vector));
        // All its holders may have left during the call, and another one come.
        if let QueryProgress::Waiting(age) = before {
            self.waiting.remove(&age);
        }
    }

    /// Takes the caller's own waiting queries for a call.
    fn take_own(&mut self, held: &[QueryHold]) -> Vec<Arc<str>> {
        // A text that occurs twice is no longer waiting at its second place.
        held.iter().filter(|hold| self.take(&hold.text)).map(|hold| Arc::clone(&hold.text)).collect()
    }

    /// Adds the oldest waiting queries of other callers to a call.
    fn with_company(&mut self, mut texts: Vec<Arc<str>>, company: usize, mut bytes: usize) -> Vec<Arc<str>> {
        for _ in 0..company {
            let Some(text) = self.waiting.first_key_value().map(|(_, text)| Arc::clone(text)) else { break };
            if text.len() > bytes {
                break;
            }
            bytes -= text.len();
            self.take(&text);
            texts.push(text);
        }
        texts
    }

    /// Marks a query as being computed. Returns `false` if it does not wait.
    fn take(&mut self, text: &str) -> bool {
        let Some(query) = self.queries.get_mut(text) else { return false };
        let QueryProgress::Waiting(age) = query.progress else { return false };
        query.progress = QueryProgress::Computing;
        self.waiting.remove(&age);
        true
    }
}

impl EmbedCall<'_> {
    /// Computes the texts and hands out their vectors.
    fn run(self, embed: &EmbedTexts<'_>) -> Result<(), EmbedError> {
        let texts: Vec<&str> = self.texts.iter().map(|text| &**text).collect();
        self.queue.counters.calls.fetch_add(1, Ordering::Relaxed);
        let vectors = embed(&texts)?;
        if vectors.len() != texts.len() {
            return Err(format!("the embedder gave {} vectors for {} queries", vectors.len(), texts.len()).into());
        }
        let mut state = self.queue.lock();
        for (text, vector) in self.texts.iter().zip(vectors) {
            let vector: Arc<[f32]> = vector.into();
            state.cache.insert(text, &vector);
            state.finish(text, vector);
        }
        self.queue.counters.cache_bytes.store(state.cache.bytes() as u64, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for EmbedCall<'_> {
    /// Ends the call. After an error or a panic, its queries wait again.
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.calls -= 1;
        for text in &self.texts {
            let computing = |query: &PendingQuery| matches!(query.progress, QueryProgress::Computing);
            if state.queries.get(text).is_some_and(computing) {
                let progress = state.wait(text);
                if let Some(query) = state.queries.get_mut(text) {
                    query.progress = progress;
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
        let Some(query) = state.queries.get_mut(&self.text) else { return };
        query.holders -= 1;
        if query.holders > 0 {
            return;
        }
        if let Some(PendingQuery { progress: QueryProgress::Waiting(age), .. }) = state.queries.remove(&self.text) {
            state.waiting.remove(&age);
        }
    }
}

impl fmt::Debug for QueryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryQueue").field("limits", &self.limits).finish_non_exhaustive()
    }
}
