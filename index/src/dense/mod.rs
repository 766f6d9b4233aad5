//! Passages by the cosine between their vector and the query's.
//!
//! All vectors have length 1, so the cosine is the dot product. They lie in a flat file, which an exact scan reads,
//! and in a usearch graph (HNSW) beside it for corpora where a scan is too slow. What the graph finds is scored again
//! from the flat file: the same passage has the same score either way.

mod codes;
mod hnsw;
mod kernel;
mod scan;
mod slots;
mod vectors;

use std::path::Path;
use std::time::Instant;

use crate::error::IndexError;
use crate::scored::Scored;

pub(crate) use codes::{Codes, Extremes};
pub(crate) use hnsw::{CONNECTIVITY, EXPANSION_ADD, build};
pub(crate) use vectors::{VectorWriter, Vectors};

/// The vectors of a snapshot, ready for searching.
#[derive(Debug)]
pub(crate) struct Dense {
    vectors: Vectors,
    graph: hnsw::Hnsw,
    exact_below: usize,
}

impl Dense {
    /// Opens both files. `slots` searches of the graph can run at once, others wait; a corpus of at most `exact_below`
    /// passages is scanned.
    pub(crate) fn open(vectors: Vectors, graph: &Path, slots: usize, exact_below: usize) -> Result<Dense, IndexError> {
        let graph = hnsw::Hnsw::open(graph, vectors.count(), vectors.dims(), slots)?;
        Ok(Dense { vectors, graph, exact_below })
    }

    /// The `k` passages nearest to `query`, which must have length 1.
    pub(crate) fn search(&self, query: &[f32], k: usize, deadline: Option<Instant>) -> Result<Vec<Scored>, IndexError> {
        if self.vectors.count() <= self.exact_below {
            Ok(scan::nearest(&self.vectors, query, k))
        } else {
            self.graph.nearest(&self.vectors, query, k, deadline)
        }
    }
}

#[cfg(test)]
mod tests;
