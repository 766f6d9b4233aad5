//! Exact search over every vector: the reference for the graph, and faster for small corpora.

use super::kernel::dot;
use super::vectors::VectorFile;
use crate::condition::AllowedPassages;
use crate::scored::{Scored, best};

/// Returns the `k` passages in `allowed` (`None` allows all) with the largest dot product with `query`.
pub(super) fn nearest(vectors: &VectorFile, query: &[f32], k: usize, allowed: Option<&AllowedPassages>) -> Vec<Scored> {
    let scored = |(row, number): (&[f32], u32)| Scored { number, score: dot(query, row) };
    match allowed {
        None => best(vectors.rows().zip(0..).map(scored).collect(), k),
        Some(allowed) => {
            let rows = allowed.numbers().filter_map(|number| Some((vectors.row(number)?, number)));
            best(rows.map(scored).collect(), k)
        }
    }
}

/// Computes the dot product of every passage with `query`.
pub(super) fn scores(vectors: &VectorFile, query: &[f32]) -> Vec<f32> {
    vectors.rows().map(|row| dot(query, row)).collect()
}
