//! Exact nearest neighbors: compares every query with every column, block by block.
//!
//! Most pairs are far apart, and the prefixes of two vectors show it: with `a = (a₁, a₂)` and `b = (b₁, b₂)`, the
//! product `a·b` is at most `a₁·b₁ + ‖a₂‖·‖b₂‖` (Cauchy and Schwarz). The rest is read only if this bound reaches the
//! threshold.

use std::sync::atomic::{AtomicU64, Ordering};

use super::panels::{HEIGHT, Panels, PrefixSplit, WIDTH};
use super::parallel::share;
use super::{BestNeighbors, THRESHOLD};
use crate::dense::{VectorFile, VectorRows, dot};
use crate::error::IndexError;

/// Number of queries that a thread takes at once.
const BLOCK: usize = 64;

/// Bytes of prefixes in panels at once. They stay in the L2 cache while all queries pass: read from memory for every
/// [`HEIGHT`] queries, they would take several times as long as the products.
const PANEL_BYTES: usize = 1 << 18;

/// Upper bound on the rounding error of a sum of a few thousand products of unit vectors.
const SLACK: f32 = 1e-4;

/// Finds for each query its nearest neighbors among `columns`, excluding itself. Calls `done` with the equivalent
/// number of queries finished.
pub(super) fn nearest(
    vectors: &VectorFile,
    queries: &[u32],
    columns: &[u32],
    threads: usize,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Vec<(u32, BestNeighbors)>, IndexError> {
    let found = queries.iter().map(|&query| (query, BestNeighbors::default())).collect();
    compare(vectors, found, columns, threads, done)
}

/// Finds for each query every neighbor among `columns`, excluding itself.
pub(super) fn all(
    vectors: &dyn VectorRows,
    queries: &[u32],
    columns: &[u32],
    threads: usize,
) -> Result<Vec<(u32, BestNeighbors)>, IndexError> {
    let found = queries.iter().map(|&query| (query, BestNeighbors::all())).collect();
    compare(vectors, found, columns, threads, &|_| ())
}

fn compare(
    vectors: &dyn VectorRows,
    mut found: Vec<(u32, BestNeighbors)>,
    columns: &[u32],
    threads: usize,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Vec<(u32, BestNeighbors)>, IndexError> {
    // A merge has nothing to compare, and the panels of all columns take a while.
    if found.is_empty() {
        return Ok(found);
    }
    let cut = PrefixSplit::of(vectors.dims());
    let all = columns.len() as u64;
    let pairs = AtomicU64::new(0);
    let chunk = (PANEL_BYTES / (size_of::<f32>() * cut.first())).max(1).next_multiple_of(WIDTH);
    for columns in columns.chunks(chunk) {
        let scan = Scan { vectors, columns, panels: Panels::of(vectors, columns, cut), cut };
        share(&mut found, BLOCK, threads, |block| {
            block.chunks_mut(HEIGHT).for_each(|few| scan.hold(few));
            let part = (block.len() * columns.len()) as u64;
            done((pairs.fetch_add(part, Ordering::Relaxed) + part) / all);
            Ok(())
        })?;
    }
    Ok(found)
}

/// Chunk of columns being compared with the queries.
struct Scan<'a> {
    vectors: &'a dyn VectorRows,
    columns: &'a [u32],
    panels: Panels,
    cut: PrefixSplit,
}

impl Scan<'_> {
    /// Compares at most [`HEIGHT`] queries with all columns.
    fn hold(&self, few: &mut [(u32, BestNeighbors)]) {
        let mut firsts = vec![0.0; self.cut.first() * HEIGHT];
        let mut rests = [0.0; HEIGHT];
        for (place, &mut (query, _)) in few.iter_mut().enumerate() {
            let row = self.vectors.row(query).unwrap_or_default();
            rests[place] = self.cut.rest(row);
            // Interleaved: the same component of all queries is adjacent, as `tiles` reads them.
            firsts[place..].iter_mut().step_by(HEIGHT).zip(row).for_each(|(place, &x)| *place = x);
        }
        self.panels.tiles(&firsts, |panel, tile| {
            for ((query, best), (row, rest)) in few.iter_mut().zip(tile.iter().zip(rests)) {
                let mut most = [0.0; WIDTH];
                for lane in 0..WIDTH {
                    // Cauchy and Schwarz, see the module documentation.
                    most[lane] = row[lane] + rest * self.panels.rests[panel][lane];
                }
                if most.iter().any(|&most| most >= THRESHOLD - SLACK) {
                    self.look(*query, panel, &most, best);
                }
            }
        });
    }

    /// Computes full products of a query with those columns of a panel that may be near.
    fn look(&self, query: u32, panel: usize, most: &[f32; WIDTH], best: &mut BestNeighbors) {
        let Some(a) = self.vectors.row(query) else { return };
        let columns = &self.columns[panel * WIDTH..];
        for (&column, _) in columns.iter().zip(most).filter(|(_, most)| **most >= THRESHOLD - SLACK) {
            if let Some(b) = self.vectors.row(column).filter(|_| column != query) {
                best.offer(column, dot(a, b));
            }
        }
    }
}
