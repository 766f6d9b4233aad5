//! Exact neighbours: every vector is held against every other one, block by block.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Best;
use crate::dense::{Vectors, dot};

/// Vectors that are held against each other while they are in the cache.
const BLOCK: usize = 64;

/// For each of the `queries` its nearest among `columns`, itself left out.
pub(super) fn nearest(
    vectors: &Vectors,
    queries: &[u32],
    columns: &[u32],
    threads: usize,
    done: &(dyn Fn(u64) + Sync),
) -> Vec<Best> {
    let mut found: Vec<Best> = queries.iter().map(|_| Best::default()).collect();
    let blocks = Mutex::new(queries.chunks(BLOCK).zip(found.chunks_mut(BLOCK)));
    let finished = AtomicUsize::new(0);
    let work = || {
        // The lock is held only while the next block is taken.
        let next = || blocks.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((queries, found)) = next() {
            columns.chunks(BLOCK).for_each(|columns| hold(vectors, queries, columns, found));
            done(finished.fetch_add(queries.len(), Ordering::Relaxed) as u64 + queries.len() as u64);
        }
    };
    std::thread::scope(|scope| {
        (1..threads.max(1)).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    found
}

fn hold(vectors: &Vectors, queries: &[u32], columns: &[u32], found: &mut [Best]) {
    for (&query, best) in queries.iter().zip(found) {
        let Some(a) = vectors.row(query) else { continue };
        for &column in columns.iter().filter(|&&column| column != query) {
            if let Some(b) = vectors.row(column) {
                best.offer(column, dot(a, b));
            }
        }
    }
}
