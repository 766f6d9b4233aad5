//! Dense search: ranks passages by the cosine between their vector and the query's.
//!
//! All vectors have length 1, so the cosine is the dot product. Vectors are in a flat file, which an exact scan reads,
//! and in a usearch graph (HNSW) for corpora too large to scan. Results of the graph are scored again from the flat
//! file, so a passage has the same score either way.

mod codes;
mod hnsw;
mod kernel;
mod link;
mod node_passages;
mod scan;
mod search_slots;
mod vectors;

use std::time::Instant;

use crate::condition::AllowedPassages;
use crate::error::IndexError;
use crate::scored::Scored;

pub(crate) use codes::{Codes, Extremes};
pub(crate) use hnsw::{CONNECTIVITY, EXPANSION_ADD};
pub(crate) use kernel::{dot, dot_bytes};
pub(crate) use link::{GraphFiles, PreviousGraph, link};
pub(crate) use vectors::{VectorFile, VectorWriter};

/// Vectors of a snapshot, ready for searching.
#[derive(Debug)]
pub(crate) struct DenseIndex {
    vectors: VectorFile,
    graph: hnsw::Hnsw,
    exact_below: usize,
}

impl DenseIndex {
    /// Opens the graph beside its vectors. At most `slots` searches of the graph run at once; others wait. A corpus of
    /// at most `exact_below` passages is scanned.
    pub(crate) fn open(
        vectors: VectorFile,
        graph: GraphFiles<'_>,
        slots: usize,
        exact_below: usize,
    ) -> Result<DenseIndex, IndexError> {
        let graph = hnsw::Hnsw::open(graph, vectors.count(), vectors.dims(), slots)?;
        Ok(DenseIndex { vectors, graph, exact_below })
    }

    pub(crate) fn vectors(&self) -> &VectorFile {
        &self.vectors
    }

    /// Returns the `k` passages in `allowed` (`None` allows all) nearest to `query`, which must have length 1. Searches
    /// the graph if more than `exact_below` passages are allowed. If the graph finds too few, because allowed passages
    /// are poorly connected, a scan takes over.
    pub(crate) fn search(
        &self,
        query: &[f32],
        k: usize,
        deadline: Option<Instant>,
        allowed: Option<&AllowedPassages>,
    ) -> Result<Vec<Scored>, IndexError> {
        let count = allowed.map_or(self.vectors.count(), AllowedPassages::len);
        if count > self.exact_below {
            let found = self.graph.nearest(&self.vectors, query, k, deadline, allowed)?;
            if allowed.is_none() || found.len() >= k.min(count) {
                return Ok(found);
            }
        }
        Ok(scan::nearest(&self.vectors, query, k, allowed))
    }

    /// Computes the dot product of every passage with `query`.
    pub(crate) fn scores(&self, query: &[f32]) -> Vec<f32> {
        scan::scores(&self.vectors, query)
    }

    /// Computes the dot products of about `count` evenly spaced passages with `query`.
    pub(crate) fn sample(&self, query: &[f32], count: usize) -> impl Iterator<Item = f32> {
        let every = self.vectors.count().div_ceil(count.max(1)).max(1);
        self.vectors.rows().step_by(every).map(move |row| kernel::dot(query, row))
    }

    /// Returns the smallest and the largest dot product of any passage with `query`. `None` if there is no passage.
    pub(crate) fn bounds(&self, query: &[f32]) -> Option<(f32, f32)> {
        scan::bounds(&self.vectors, query)
    }
}

#[cfg(test)]
mod tests;
