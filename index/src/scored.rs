//! Passage numbers with scores.

/// Number of a passage in the index, with its score. Larger is better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scored {
    pub(crate) number: u32,
    pub(crate) score: f32,
}

/// Returns the best `k`, best first, ties by number.
pub(crate) fn best(mut scored: Vec<Scored>, k: usize) -> Vec<Scored> {
    let order = |a: &Scored, b: &Scored| b.score.total_cmp(&a.score).then(a.number.cmp(&b.number));
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
