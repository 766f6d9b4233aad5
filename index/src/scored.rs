//! Numbers of passages, phrases or facts, with scores.

use std::cmp::Ordering;

/// Number of a passage, phrase or fact in the index, with its score. Larger scores are better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scored {
    pub(crate) number: u32,
    pub(crate) score: f32,
}

/// Returns the best `k`, best first, ties in the order of `tie`.
pub(crate) fn best_by(mut scored: Vec<Scored>, k: usize, tie: impl Fn(u32, u32) -> Ordering) -> Vec<Scored> {
    let order = |a: &Scored, b: &Scored| b.score.total_cmp(&a.score).then_with(|| tie(a.number, b.number));
    if k == 0 {
        return Vec::new();
    }
    if k < scored.len() {
        // Sorting only the best `k` suffices.
        scored.select_nth_unstable_by(k - 1, order);
        scored.truncate(k);
    }
    scored.sort_unstable_by(order);
    scored
}

/// Returns the best `k`, best first, ties by number.
pub(crate) fn best(scored: Vec<Scored>, k: usize) -> Vec<Scored> {
    best_by(scored, k, |a, b| a.cmp(&b))
}
