//! A passage and how well it matches.

/// A passage by its number in the index, and its score: larger is better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scored {
    pub(crate) number: u32,
    pub(crate) score: f32,
}

/// The best `k`, best first, equal scores by number.
pub(crate) fn best(mut scored: Vec<Scored>, k: usize) -> Vec<Scored> {
    let order = |a: &Scored, b: &Scored| b.score.total_cmp(&a.score).then(a.number.cmp(&b.number));
    if k == 0 {
        return Vec::new();
    }
    if k < scored.len() {
        // Only the front is ever looked at, so only the front is sorted.
        scored.select_nth_unstable_by(k - 1, order);
        scored.truncate(k);
    }
    scored.sort_unstable_by(order);
    scored
}
