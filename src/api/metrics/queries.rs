//! Metrics of the embedding of search queries. All are 0 on a server without an embedder.

use waymark_runtime::embedding::TextEmbedder;
use waymark_runtime::query_embedder::QueryCounters;

use super::recorder::MetricsRecorder;

/// Records the counters of the embedder.
pub(super) fn record(recorder: &MetricsRecorder, embedder: Option<&dyn TextEmbedder>) {
    let none = QueryCounters::default();
    let counters = embedder.and_then(|embedder| embedder.query_counters()).unwrap_or(&none);
    for (name, help, value) in [
        ("waymark_query_embeddings_total", "Queries whose vectors searches needed", counters.queries()),
        ("waymark_query_embeddings_cached_total", "Queries whose vectors were in the cache", counters.cached()),
        ("waymark_query_embedding_calls_total", "Calls of the embedder for queries", counters.calls()),
    ] {
        recorder.counter(name, help).absolute(value);
    }
    let help = "Size of the cache of query vectors in bytes";
    recorder.gauge("waymark_query_cache_bytes", help).set(counters.cache_bytes() as f64);
}
