//! Dense search: ranks passages by the cosine between their vector and the query's.
//!
//! All vectors have length 1, so the cosine is the dot product. Vectors are in a flat file, which an exact scan reads,
//! and in a usearch graph (HNSW) for corpora too large to scan. Results of the graph are scored again from the flat
//! file, so a passage has the same score either way. Vectors of documents changed since the base snapshot are few and
//! always scanned, by their codes.

mod codes;
mod hnsw;
mod kernel;
mod link;
mod node_passages;
mod scan;
mod search_slots;
mod vectors;

use std::sync::Arc;
use std::time::Instant;

use crate::condition::{AllowedPassages, admits};
use crate::delta::DocumentDelta;
use crate::error::IndexError;
use crate::options::OpenOptions;
use crate::scored::{Scored, best};

pub(crate) use codes::{Codes, Extremes, GrowingCodes};
pub(crate) use hnsw::{CONNECTIVITY, EXPANSION_ADD};
pub(crate) use kernel::{dot, dot_bytes};
pub(crate) use link::{GraphFiles, PreviousGraph, link};
pub(crate) use vectors::{VectorFile, VectorRows, VectorWriter};

/// Vectors of a snapshot, ready for searching.
#[derive(Debug, Clone)]
pub(crate) struct DenseIndex {
    base: Arc<BaseVectors>,
    delta: Arc<DocumentDelta>,
}

/// Vectors of the base snapshot.
#[derive(Debug)]
struct BaseVectors {
    vectors: VectorFile,
    graph: hnsw::Hnsw,
    exact_below: usize,
}

impl DenseIndex {
    /// Opens the graph beside its vectors.
    pub(crate) fn open(
        vectors: VectorFile,
        graph: GraphFiles<'_>,
        options: &OpenOptions,
    ) -> Result<DenseIndex, IndexError> {
        let graph = hnsw::Hnsw::open(graph, vectors.count(), vectors.dims(), options)?;
        let exact_below = options.exact_below;
        let delta = Arc::new(DocumentDelta::new(u32::try_from(vectors.count()).unwrap_or(u32::MAX)));
        Ok(DenseIndex { base: Arc::new(BaseVectors { vectors, graph, exact_below }), delta })
    }

    /// Returns the index over the same base snapshot with other changes.
    pub(crate) fn with_delta(&self, delta: Arc<DocumentDelta>) -> DenseIndex {
        DenseIndex { base: Arc::clone(&self.base), delta }
    }

    /// Vectors of the base snapshot.
    pub(crate) fn base(&self) -> &VectorFile {
        &self.base.vectors
    }

    /// Returns the vector of a passage. `None` if there is no such passage.
    pub(crate) fn row(&self, number: u32) -> Option<&[f32]> {
        match self.delta.get(number) {
            None => self.base.vectors.row(number),
            Some(document) => document.map(|document| document.vector.as_slice()),
        }
    }

    /// Iterates over the vectors of all passages with their numbers.
    fn rows(&self) -> impl Iterator<Item = (u32, &[f32])> {
        let unchanged = |&(number, _): &(u32, &[f32])| self.delta.get(number).is_none();
        let base = (0..).zip(self.base.vectors.rows()).filter(unchanged);
        base.chain(self.delta.documents().map(|(number, document)| (number, document.vector.as_slice())))
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
        let count = allowed.map_or(self.delta.live() as usize, AllowedPassages::len);
        if count > self.base.exact_below {
            let found = self.by_graph(query, k, deadline, allowed)?;
            // An unfiltered search of the graph finds `k` passages, or all if there are fewer.
            if (allowed.is_none() && self.delta.is_empty()) || found.len() >= k.min(count) {
                return Ok(found);
            }
        }
        if self.delta.is_empty() {
            return Ok(scan::nearest(&self.base.vectors, query, k, allowed));
        }
        let rows: Vec<Scored> = match allowed {
            None => self.rows().map(|(number, row)| Scored { number, score: dot(query, row) }).collect(),
            Some(allowed) => {
                let rows = allowed.numbers().filter_map(|number| Some((number, self.row(number)?)));
                rows.map(|(number, row)| Scored { number, score: dot(query, row) }).collect()
            }
        };
        Ok(best(rows, k))
    }

    /// Searches the graph of the base snapshot and scans the changed documents.
    fn by_graph(
        &self,
        query: &[f32],
        k: usize,
        deadline: Option<Instant>,
        allowed: Option<&AllowedPassages>,
    ) -> Result<Vec<Scored>, IndexError> {
        let usable = |number| !self.delta.replaces(number) && admits(allowed, number);
        // An unfiltered search is several times faster, and added documents need no filter.
        let all = allowed.is_none() && !self.delta.replaces_any();
        let usable: Option<&dyn Fn(u32) -> bool> = if all { None } else { Some(&usable) };
        // The graph may hold fewer usable nodes than requested, and a filtered search for more would visit all.
        let wanted = k.min(allowed.map_or(usize::MAX, AllowedPassages::len));
        let mut found = self.base.graph.nearest(&self.base.vectors, query, wanted, deadline, usable)?;
        if self.delta.is_empty() {
            return Ok(found);
        }
        found.extend(self.delta.nearest(query, k, allowed));
        Ok(best(found, k))
    }

    /// Computes the dot product of every passage with `query`, by number. NaN where a number is not in use.
    pub(crate) fn scores(&self, query: &[f32]) -> Vec<f32> {
        if self.delta.is_empty() {
            return scan::scores(&self.base.vectors, query);
        }
        let mut scores = vec![f32::NAN; self.delta.bound() as usize];
        self.rows().for_each(|(number, row)| scores[number as usize] = dot(query, row));
        scores
    }

    /// Computes the dot products of about `count` evenly spaced passages with `query`.
    pub(crate) fn sample(&self, query: &[f32], count: usize) -> Vec<f32> {
        let every = (self.delta.live() as usize).div_ceil(count.max(1)).max(1);
        let score = |number| self.row(number).map(|row| dot(query, row));
        match self.delta.alive() {
            None => (0..self.delta.bound()).step_by(every).filter_map(score).collect(),
            Some(alive) => alive.every(every).filter_map(score).collect(),
        }
    }

    /// Returns the smallest and the largest dot product of any passage with `query`. `None` if there is no passage.
    pub(crate) fn bounds(&self, query: &[f32]) -> Option<(f32, f32)> {
        let scores = self.rows().map(|(_, row)| dot(query, row));
        scores.map(|score| (score, score)).reduce(|(low, high), (score, _)| (low.min(score), high.max(score)))
    }
}

#[cfg(test)]
mod tests;
