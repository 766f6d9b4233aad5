//! Exact nearest neighbors: compares every query with every column.
//!
//! Most pairs are far apart, and their [`Sketches`] show it: the product of two sketches is at least that of their
//! vectors. The vectors are read only if this bound reaches the threshold.

use std::sync::atomic::{AtomicU64, Ordering};

use super::parallel::share;
use super::sketch_basis::SketchBasis;
use super::sketches::Sketches;
use super::tiles::{HEIGHT, Tile, WIDTH, tile};
use super::{BestNeighbors, SLACK, THRESHOLD};
use crate::dense::{VectorFile, VectorRows, dot};
use crate::error::IndexError;

/// Maximum number of query groups that a thread takes at once. All of these groups are compared with a block of columns
/// while the block is in the cache.
const BLOCK: usize = 32;

/// Number of pairs up to which full products cost less than sketches.
const FEW_PAIRS: usize = 1 << 18;

/// Finds for each query its nearest neighbors among `columns`, excluding itself. Calls `done` with the number of
/// queries finished.
pub(super) fn nearest(
    vectors: &VectorFile,
    queries: &[u32],
    columns: &[u32],
    threads: usize,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Vec<(u32, BestNeighbors)>, IndexError> {
    let found = queries.iter().map(|&query| (query, BestNeighbors::default())).collect();
    // A merge has nothing to compare, and sketches take a while.
    if queries.is_empty() || columns.is_empty() {
        return Ok(found);
    }
    let number = |place: usize| columns.get(place).copied();
    let basis = if queries.len().saturating_mul(columns.len()) <= FEW_PAIRS {
        SketchBasis::none(vectors.dims())
    } else {
        SketchBasis::of(vectors, columns.len(), &|place| columns[place])
    };
    let mut sketches = Sketches::new(basis);
    sketches.extend(columns.len(), &|place| vectors.row(columns[place]).unwrap_or_default(), threads)?;
    Scan { vectors, sketches: &sketches, column: &number }.compare(found, threads, done)
}

/// Comparison of queries with the columns of some sketches.
pub(super) struct Scan<'a> {
    pub(super) vectors: &'a dyn VectorRows,
    pub(super) sketches: &'a Sketches,
    /// Returns the number of a column by its place. `None` excludes the column.
    pub(super) column: &'a (dyn Fn(usize) -> Option<u32> + Sync),
}

/// Queries that are multiplied at once.
struct QueryGroup {
    found: Vec<(u32, BestNeighbors)>,
    /// Sketches of the queries, interleaved.
    sketches: Vec<f32>,
}

impl Scan<'_> {
    /// Offers every column to every query, except the query itself.
    pub(super) fn compare(
        &self,
        found: Vec<(u32, BestNeighbors)>,
        threads: usize,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<(u32, BestNeighbors)>, IndexError> {
        let mut found = found.into_iter().peekable();
        let mut groups = Vec::with_capacity(found.len().div_ceil(HEIGHT));
        while found.peek().is_some() {
            let few: Vec<(u32, BestNeighbors)> = found.by_ref().take(HEIGHT).collect();
            let vectors = few.iter().map(|(query, _)| self.vectors.row(*query).unwrap_or_default());
            groups.push(QueryGroup { sketches: self.sketches.queries(vectors), found: few });
        }
        let finished = AtomicU64::new(0);
        let block = groups.len().div_ceil(4 * threads.max(1)).clamp(1, BLOCK);
        share(&mut groups, block, threads, |groups| {
            for (first, panels) in self.sketches.blocks() {
                for (first, panel) in (first..).step_by(WIDTH).zip(panels) {
                    groups.iter_mut().for_each(|group| self.hold(group, first, panel));
                }
            }
            let part = groups.iter().map(|group| group.found.len() as u64).sum::<u64>();
            done(finished.fetch_add(part, Ordering::Relaxed) + part);
            Ok(())
        })?;
        Ok(groups.into_iter().flat_map(|group| group.found).collect())
    }

    /// Compares a group of queries with the columns of a panel, which begin at the place `first`.
    fn hold(&self, group: &mut QueryGroup, first: usize, panel: &[f32]) {
        let bounds = tile(&group.sketches, panel);
        if !reaches(&bounds) {
            return;
        }
        for ((query, best), bounds) in group.found.iter_mut().zip(&bounds) {
            let near = (first..).zip(bounds).filter(|(_, bound)| **bound >= THRESHOLD - SLACK);
            for column in near.filter_map(|(place, _)| (self.column)(place)).filter(|column| column != query) {
                if let (Some(a), Some(b)) = (self.vectors.row(*query), self.vectors.row(column)) {
                    best.offer(column, dot(a, b));
                }
            }
        }
    }
}

/// Returns `true` if any bound reaches the threshold.
fn reaches(bounds: &Tile) -> bool {
    // Counted instead of searched, which the compiler vectorizes.
    let near = bounds.as_flattened().iter().map(|&bound| u32::from(bound >= THRESHOLD - SLACK));
    near.sum::<u32>() > 0
}
