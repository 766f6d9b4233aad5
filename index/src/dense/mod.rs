//! Passages by the cosine between their vector and the query's.
//!
//! All vectors have length 1, so the cosine is the dot product. They lie in a flat file, which an exact scan reads,
//! and in a usearch graph (HNSW) beside it for corpora where a scan is too slow. What the graph finds is scored again
//! from the flat file: the same passage has the same score either way.

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

/// The vectors of a snapshot, ready for searching.
#[derive(Debug)]
pub(crate) struct DenseIndex {
    vectors: VectorFile,
    graph: hnsw::Hnsw,
    exact_below: usize,
}

impl DenseIndex {
    /// Opens the graph beside its vectors. `slots` searches of the graph can run at once, others wait; a corpus of at most `exact_below`
    /// passages is scanned.
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

    /// The `k` passages nearest to `query`, which must have length 1, of those that are allowed, if not all are. The
    /// graph is searched where more than `exact_below` are; what it leaves open for want of ways between a few allowed
    /// ones, a scan finds.
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

    /// The dot product of every passage with `query`.
    pub(crate) fn scores(&self, query: &[f32]) -> Vec<f32> {
        scan::scores(&self.vectors, query)
    }

    /// The dot products of about `count` passages with `query`, evenly spread over all of them.
    pub(crate) fn sample(&self, query: &[f32], count: usize) -> impl Iterator<Item = f32> {
        let every = self.vectors.count().div_ceil(count.max(1)).max(1);
        self.vectors.rows().step_by(every).map(move |row| kernel::dot(query, row))
    }

    /// The smallest and the largest dot product of any passage with `query`; `None` where there is no passage.
    pub(crate) fn bounds(&self, query: &[f32]) -> Option<(f32, f32)> {
        scan::bounds(&self.vectors, query)
    }
}

#[cfg(test)]
mod tests;
