//! Embedder of search queries: computes the queries of concurrent searches together, and caches their vectors.
//!
//! `queue`: batches of waiting queries · `cache`: vectors by query, least recently used first out · `key`: texts and
//! salts

mod cache;
mod key;
mod queue;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use waymark_index::{Embed, EmbedError, Prompts, QueryAnnouncement, QueryContext};

use crate::embedding::TextEmbedder;
use queue::{QueryQueue, QueueLimits};

/// Maximum size of the cache of a server, in bytes: about 9,000 queries with vectors of 384 numbers.
pub const QUERY_CACHE_BYTES: usize = 16 << 20;

/// Embedder in front of another one, for the indexes that are searched with it.
///
/// A query that arrives while the embedder is idle is computed at once. Queries that arrive while it computes form the
/// next batch. Queries of different [salts](QueryContext) share batches, but no vectors. All other calls go to the
/// embedder behind it.
pub struct QueryEmbedder<E> {
    inner: Arc<E>,
    queue: Arc<QueryQueue>,
}

/// Counts of query embeddings.
#[derive(Debug, Default)]
pub struct QueryCounters {
    queries: AtomicU64,
    cached: AtomicU64,
    calls: AtomicU64,
    cache_bytes: AtomicU64,
}

impl QueryCounters {
    /// Number of queries whose vectors searches needed.
    pub fn queries(&self) -> u64 {
        self.queries.load(Ordering::Relaxed)
    }

    /// Number of queries whose vectors were in the cache.
    pub fn cached(&self) -> u64 {
        self.cached.load(Ordering::Relaxed)
    }

    /// Number of calls of the embedder, for queries that were not in the cache.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Size of the cache in bytes.
    pub fn cache_bytes(&self) -> u64 {
        self.cache_bytes.load(Ordering::Relaxed)
    }
}

impl<E: TextEmbedder> QueryEmbedder<E> {
    /// Puts a queue and a cache of at most `cache_bytes` in front of `inner`. 0 disables the cache.
    pub fn new(inner: Arc<E>, cache_bytes: usize) -> Self {
        // An endpoint takes several requests at once and batches them itself.
        let limits = if inner.is_remote() { QueueLimits::UNBATCHED } else { QueueLimits::BATCHED };
        Self::with_limits(inner, limits, cache_bytes)
    }

    fn with_limits(inner: Arc<E>, limits: QueueLimits, cache_bytes: usize) -> Self {
        Self { inner, queue: Arc::new(QueryQueue::new(limits, cache_bytes)) }
    }
}

impl<E: TextEmbedder> Embed for QueryEmbedder<E> {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn source(&self) -> Option<&str> {
        self.inner.source()
    }

    fn dims(&self) -> usize {
        self.inner.dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.inner.embed(texts)
    }

    fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.inner.embed_documents(texts)
    }

    fn embed_queries(&self, texts: &[&str], context: QueryContext) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.queue.vectors(texts, context, &|texts| self.inner.embed_queries(texts, context))
    }

    fn announce_query(&self, text: &str, context: QueryContext) -> Option<QueryAnnouncement> {
        self.queue.announce_query(text, context)
    }

    fn least_batch(&self) -> usize {
        self.inner.least_batch()
    }

    fn cuts(&self, text: &str) -> bool {
        self.inner.cuts(text)
    }

    fn prompts(&self) -> Prompts {
        self.inner.prompts()
    }
}

impl<E: TextEmbedder> TextEmbedder for QueryEmbedder<E> {
    fn count_tokens(&self, text: &str) -> usize {
        self.inner.count_tokens(text)
    }

    fn max_tokens(&self) -> usize {
        self.inner.max_tokens()
    }

    fn max_bytes(&self) -> usize {
        self.inner.max_bytes()
    }

    fn is_remote(&self) -> bool {
        self.inner.is_remote()
    }

    fn query_counters(&self) -> Option<&QueryCounters> {
        Some(self.queue.counters())
    }
}

impl<E: fmt::Debug> fmt::Debug for QueryEmbedder<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryEmbedder").field("inner", &self.inner).finish_non_exhaustive()
    }
}
