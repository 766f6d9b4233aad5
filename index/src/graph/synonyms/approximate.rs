//! Approximate nearest neighbors, for sets too large to compare pairwise: an HNSW graph by usearch, over vectors of one
//! byte per number, in memory. Results are scored again in full precision.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use usearch::{Index, IndexOptions, MetricKind, ScalarKind};

use super::parallel::share;
use super::{BestNeighbors, MOST, THRESHOLD};
use crate::dense::{VectorFile, dot, dot_bytes};
use crate::error::IndexError;

/// Number of phrases that a thread takes at once.
const BLOCK: usize = 256;
/// Neighbors per node.
const CONNECTIVITY: usize = 16;
/// Number of candidates examined when adding a node.
const EXPANSION_ADD: usize = 64;
/// Minimum number of candidates examined in a search.
const EXPANSION_SEARCH: usize = 64;
/// Number of neighbors requested at first; most phrases have fewer.
const FEW: usize = 24;
/// Number of neighbors requested if there are more: above [`MOST`], since the order is approximate and includes the
/// phrase itself.
const MANY: usize = MOST + 59;
/// Safe estimate of the scoring error of two quantized vectors.
const ERROR: f32 = 0.02;

/// Finds for each query approximately its nearest neighbors among `columns`, excluding itself. Calls `done` with the
/// equivalent number of queries finished, counting building the graph as half of the work.
pub(super) fn nearest(
    vectors: &VectorFile,
    queries: &[u32],
    columns: &[u32],
    threads: usize,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Vec<(u32, BestNeighbors)>, IndexError> {
    let graph = ApproximateGraph::new(vectors, columns.len(), threads.max(1))?;
    let half = queries.len() as u64 / 2;
    let added = AtomicU64::new(0);
    share(&mut columns.to_vec(), BLOCK, threads, |block| {
        block.iter().try_for_each(|&column| graph.add(column))?;
        let added = added.fetch_add(block.len() as u64, Ordering::Relaxed) + block.len() as u64;
        done(added * half / columns.len() as u64);
        Ok(())
    })?;
    let mut found: Vec<(u32, BestNeighbors)> = queries.iter().map(|&query| (query, BestNeighbors::default())).collect();
    let searched = AtomicU64::new(0);
    share(&mut found, BLOCK, threads, |block| {
        block.iter_mut().try_for_each(|(query, best)| graph.search(*query, best))?;
        let searched = searched.fetch_add(block.len() as u64, Ordering::Relaxed) + block.len() as u64;
        done(half + searched.div_ceil(2));
        Ok(())
    })?;
    Ok(found)
}

struct ApproximateGraph<'a> {
    vectors: &'a VectorFile,
    index: Index,
    /// Factor that maps a number to a byte.
    scale: f32,
}

impl ApproximateGraph<'_> {
    fn new(vectors: &VectorFile, count: usize, threads: usize) -> Result<ApproximateGraph<'_>, IndexError> {
        let dims = vectors.dims();
        let mut index = Index::new(&IndexOptions {
            dimensions: dims,
            metric: MetricKind::IP,
            quantization: ScalarKind::I8,
            connectivity: CONNECTIVITY,
            expansion_add: EXPANSION_ADD,
            expansion_search: EXPANSION_SEARCH,
            multi: false,
        })
        .map_err(failed)?;
        let largest = vectors.rows().flatten().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let scale = 127.0 / largest.max(f32::MIN_POSITIVE);
        let square = scale * scale;
        index.change_metric::<i8>(Box::new(move |a, b| {
            // SAFETY: usearch calls this with two stored or queried vectors of the index, which have `dims` bytes each.
            let (a, b) = unsafe { (std::slice::from_raw_parts(a, dims), std::slice::from_raw_parts(b, dims)) };
            1.0 - dot_bytes(a, b) as f32 / square
        }));
        index.reserve_capacity_and_threads(count, threads).map_err(failed)?;
        Ok(ApproximateGraph { vectors, index, scale })
    }

    fn bytes(&self, number: u32) -> Vec<i8> {
        let row = self.vectors.row(number).unwrap_or_default();
        row.iter().map(|x| (x * self.scale).round() as i8).collect()
    }

    fn add(&self, number: u32) -> Result<(), IndexError> {
        self.index.add(u64::from(number), &self.bytes(number)).map_err(failed)
    }

    fn search(&self, query: u32, best: &mut BestNeighbors) -> Result<(), IndexError> {
        let Some(a) = self.vectors.row(query) else { return Ok(()) };
        let bytes = self.bytes(query);
        let mut matches = self.index.search(&bytes, FEW).map_err(failed)?;
        // The farthest of a few is still a possible synonym, so there may be more of them.
        if matches.distances.last().is_some_and(|distance| 1.0 - distance >= THRESHOLD - ERROR) {
            matches = self.index.search(&bytes, MANY).map_err(failed)?;
        }
        for number in matches.keys.into_iter().filter_map(|key| u32::try_from(key).ok()).filter(|&key| key != query) {
            if let Some(b) = self.vectors.row(number) {
                best.offer(number, dot(a, b));
            }
        }
        Ok(())
    }
}

fn failed(error: impl fmt::Display) -> IndexError {
    IndexError::Dense { action: "look for synonyms in", message: error.to_string() }
}
