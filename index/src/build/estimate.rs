//! Estimate of the time that a build will take to embed its texts, from a sample of the passages.

use std::time::{Duration, Instant};

use crate::batch_embedder::BatchEmbedder;
use crate::embedding_journal::TextHash;
use crate::error::IndexError;
use crate::progress::EmbeddingEstimate;
use crate::store::PassageStore;

/// Number of passages to embed for an estimate. Their vectors are kept in the journal, so that the time is not lost.
const SAMPLE: u32 = 64;

/// Minimum number of passages for an estimate.
const LEAST: u32 = 1024;

/// Time to embed the phrases and facts of a graph, in units of the time to embed its passages. Measured with the
/// built-in extractor on the passages of 2WikiMultiHopQA, each of which brings 20 short texts.
const GRAPH_SHARE: f64 = 4.0;

/// Times the embedding of evenly spaced passages. Returns `None` for a small index, and if the cache holds the vector
/// of one of these passages: an earlier build embedded it, and an unknown share of the other texts too.
pub(super) fn estimate(
    store: &PassageStore,
    embedding: BatchEmbedder<'_>,
    has_graph: bool,
) -> Result<Option<EmbeddingEstimate>, IndexError> {
    let count = store.count();
    if count < LEAST {
        return Ok(None);
    }
    let texts =
        (0..SAMPLE).map(|place| store.content((u64::from(place) * u64::from(count) / u64::from(SAMPLE)) as u32));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    for text in &texts {
        if embedding.memory.get(TextHash::of(text))?.is_some() {
            return Ok(None);
        }
    }
    let started = Instant::now();
    embedding.vectors("passages", &texts)?;
    let passages = started.elapsed().mul_f64(f64::from(count) / f64::from(SAMPLE));
    let graph = if has_graph { passages.mul_f64(GRAPH_SHARE) } else { Duration::ZERO };
    Ok(Some(EmbeddingEstimate { passages, graph }))
}
